//! Detection of a machine's controls from texts.

use super::*;
use std::collections::BTreeMap;

fn texts(info: &[(&str, &[(&str, &str)])], schemata: &str) -> InfoTexts {
    let info = info.iter().map(|(directory, files)| {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        ((*directory).to_owned(), files.collect::<BTreeMap<_, _>>())
    });
    InfoTexts { info: Some(info.collect()), schemata: Some(schemata.to_owned()) }
}

const L3: (&str, &[(&str, &str)]) = (
    "L3",
    &[
        ("cbm_mask", "fff\n"),
        ("min_cbm_bits", "1"),
        ("shareable_bits", "c00"),
        ("num_closids", "16"),
    ],
);
const MB: (&str, &[(&str, &str)]) = (
    "MB",
    &[
        ("num_closids", "8"),
        ("min_bandwidth", "10"),
        ("bandwidth_gran", "10"),
        ("delay_linear", "1"),
    ],
);

fn mount(options: &str) -> Mount {
    find_mount(&format!("resctrl /sys/fs/resctrl resctrl {options} 0 0\n")).unwrap()
}

#[test]
fn controls_and_closids_come_from_info() {
    let texts = texts(&[L3, MB], "    MB:0=  100;1=  100\n    L3:0=fff;1=fff\n");
    let resctrl = Resctrl::detect(&mount("rw,mba_MBps"), &texts).unwrap();
    let l3 = resctrl.l3.as_ref().unwrap();
    assert_eq!(l3.cache_ids, [CacheId(0), CacheId(1)]);
    assert_eq!(l3.base().unwrap().cbm_mask, CapacityMask(0xfff));
    assert!(!l3.cdp());
    assert_eq!(resctrl.num_closids(), Some(8));
    assert_eq!(resctrl.mb.unwrap().unit(), BandwidthUnit::MegabytesPerSecond);
}

#[test]
fn a_control_without_schemata_line_is_an_error() {
    let error = Resctrl::detect(&mount("rw"), &texts(&[L3], "MB:0=100\n")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to get L3 CAT cache IDs: no L3 resources in root schemata"
    );
}

#[test]
fn blocks_of_bits_stay_within_a_word() {
    for (lowest, count, mask) in [(0, 64, u64::MAX), (60, 8, 0xf << 60), (64, 1, 0), (4, 0, 0)] {
        assert_eq!(CapacityMask::block(lowest, count), CapacityMask(mask), "{lowest} {count}");
    }
    assert!(!CapacityMask(0b101).is_contiguous());
    assert!(CapacityMask(u64::MAX).is_contiguous());
}
