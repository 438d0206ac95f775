//! Any text as a file of RDT or block I/O classes, on a machine with caches, bandwidth and disks: an
//! error, or a plan whose masks are inside the cache.

#![no_main]

use classes::hardware::resctrl::{InfoTexts, find_mount};
use classes::hardware::{
    BlockDevice, CapacityMask, DeviceEntry, DeviceNumber, DeviceTree, Resctrl,
};
use classes::rdt::{Config, Tree, names::Prefix, plan};
use classes::schemata::Control;
use libfuzzer_sys::fuzz_target;

fn machine() -> Resctrl {
    let mount = find_mount("resctrl /sys/fs/resctrl resctrl rw 0 0").expect("a mount");
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let l3 = [
        file("cbm_mask", "fffff"),
        file("min_cbm_bits", "2"),
        file("shareable_bits", "0"),
        file("num_closids", "8"),
    ];
    let mb = [
        file("num_closids", "8"),
        file("min_bandwidth", "10"),
        file("bandwidth_gran", "10"),
        file("delay_linear", "1"),
    ];
    let info = [("L3".to_owned(), l3.into()), ("MB".to_owned(), mb.into())];
    let schemata = Some("L3:0=fffff;1=fffff\nMB:0=100;1=100\n".to_owned());
    Resctrl::detect(&mount, &InfoTexts { info: Some(info.into()), schemata }).expect("a machine")
}

fuzz_target!(|text: &str| {
    let machine = machine();
    if let Ok(config) = Config::parse(text)
        && let (Ok(plan), _) = plan(&config, &machine, &Tree::default(), &Prefix::default(), true)
    {
        for line in plan.write.iter().flat_map(|(_, schemata)| &schemata.lines) {
            for (_, value) in &line.values {
                match line.control {
                    Control::Cache(..) => {
                        let mask = CapacityMask(*value);
                        assert!(mask.is_contiguous() && CapacityMask(0xf_ffff).contains(mask));
                    }
                    Control::MemoryBandwidth => assert!((10..=100).contains(value)),
                }
            }
        }
    }
    let number = DeviceNumber { major: 8, minor: 0 };
    let disk = BlockDevice { number, partition: false, scheduler: None };
    let entries = [
        ("/dev/sda".to_owned(), DeviceEntry::Block(disk)),
        ("/dev/disk/by-id/a".to_owned(), DeviceEntry::Link("../../sda".to_owned())),
    ];
    let devices = DeviceTree { entries: entries.into() };
    if let Ok(Some(config)) = classes::blockio::Config::parse(text) {
        for force in [false, true] {
            let _ = classes::blockio::resolve(&config, &devices, force);
        }
    }
});
