//! Throttles of a loop device are enforced, changed and removed.

use std::fs;
use std::process::Command;
use std::time::Instant;

use classes::hardware::DeviceNumber;
use host::block_devices::BlockDevices;
use host::cgroups::{IoFile, IoSettings, Version};

use crate::Own;

const MEBIBYTE: u64 = 1 << 20;

/// The allowed difference between the throttle and the measured rate.
const TOLERANCE: f64 = 0.15;

/// A loop device on a temporary file.
struct Loop {
    path: String,
    number: DeviceNumber,
    _file: tempfile::NamedTempFile,
}

impl Loop {
    fn new() -> Loop {
        // `/tmp` may be memory, which is not a block device.
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.as_file().set_len(256 * MEBIBYTE).unwrap();
        let path = output(Command::new("losetup").args(["--find", "--show"]).arg(file.path()));
        let name = path.trim_start_matches("/dev/");
        let number = fs::read_to_string(format!("/sys/class/block/{name}/dev")).unwrap();
        Loop { number: DeviceNumber::parse(&number).unwrap(), path, _file: file }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        output(Command::new("losetup").args(["--detach", &self.path]));
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns settings with limits of reads and writes in bytes per second.
fn throttles(version: Version, device: DeviceNumber, read: u64, write: u64) -> IoSettings {
    let mut settings = IoSettings::default();
    let mut put = |file, text: String| settings.read(file, &text).unwrap();
    match version {
        Version::V1 => {
            put(IoFile::ReadBpsV1, format!("{device} {read}"));
            put(IoFile::WriteBpsV1, format!("{device} {write}"));
        }
        Version::V2 => put(IoFile::Max, format!("{device} rbps={read} wbps={write}")),
    }
    settings
}

/// Returns the rate of a copy in the cgroup in bytes per second.
fn rate(own: &Own, from: &str, to: &str, flag: &str, mebibytes: u64) -> f64 {
    let copy = format!("exec dd if={from} of={to} bs=64k count={} {flag} 2>&1", mebibytes * 16);
    let started = Instant::now();
    let output = own.start(&copy).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    (mebibytes * MEBIBYTE) as f64 / started.elapsed().as_secs_f64()
}

#[test]
fn throttles_of_a_class_hold_for_reads_and_writes() {
    let (own, device) = (Own::new(), Loop::new());
    let (cgroups, devices) = (&own.cgroups, BlockDevices::live());
    let files = cgroups.io_files(&own.path).unwrap();
    assert!(files.throttle, "{files:?}");
    let (tree, anomalies) = devices.observe();
    assert_eq!(anomalies, []);
    let is_found =
        tree.block_devices().any(|(path, of)| path == device.path && of.number == device.number);
    assert!(is_found, "{tree:?}");

    for (read, write) in [(8, 4), (12, 16)] {
        let (read, write) = (read * MEBIBYTE, write * MEBIBYTE);
        let settings = throttles(cgroups.version(), device.number, read, write);
        assert_eq!(cgroups.set_io(&own.path, &settings, &devices).unwrap(), [].into());
        assert_eq!(cgroups.io_settings(&own.path).unwrap(), settings);
        let is = [
            rate(&own, &device.path, "/dev/null", "iflag=direct", 3 * read / MEBIBYTE),
            rate(&own, "/dev/zero", &device.path, "oflag=direct", 3 * write / MEBIBYTE),
        ];
        for (is, limit) in is.into_iter().zip([read as f64, write as f64]) {
            eprintln!(
                "{:.2} MiB/s with a limit of {}",
                is / MEBIBYTE as f64,
                limit / MEBIBYTE as f64
            );
            assert!((is - limit).abs() <= limit * TOLERANCE, "{is} with a limit of {limit}");
        }
    }

    // A class without limits removes those of the class before.
    cgroups.set_io(&own.path, &IoSettings::default(), &devices).unwrap();
    assert!(cgroups.io_settings(&own.path).unwrap().is_empty());
    let unlimited = rate(&own, &device.path, "/dev/null", "iflag=direct", 96);
    assert!(unlimited > 16.0 * MEBIBYTE as f64, "{unlimited}");
}

#[test]
fn weights_are_set_reset_and_left_out_where_missing() {
    let own = Own::new();
    let (cgroups, devices) = (&own.cgroups, BlockDevices::live());
    let files = cgroups.io_files(&own.path).unwrap();
    let (plain, bfq) = match cgroups.version() {
        Version::V1 => (IoFile::WeightV1, IoFile::BfqWeightV1),
        Version::V2 => (IoFile::Weight, IoFile::BfqWeight),
    };
    for (file, is_there) in [(plain, files.weight), (bfq, files.bfq_weight)] {
        let mut settings = IoSettings::default();
        settings.read(file, "250").unwrap();
        let left_out = cgroups.set_io(&own.path, &settings, &devices).unwrap();
        assert_eq!(left_out.contains(&file), !is_there);
        assert_eq!(cgroups.io_settings(&own.path).unwrap() == settings, is_there);
        cgroups.set_io(&own.path, &IoSettings::default(), &devices).unwrap();
        assert!(cgroups.io_settings(&own.path).unwrap().is_empty());
    }
    let unknown = throttles(cgroups.version(), DeviceNumber { major: 4000, minor: 1 }, 5, 5);
    let error = cgroups.set_io(&own.path, &unknown, &devices).unwrap_err().to_string();
    assert_eq!(error, "device 4000:1 does not exist");
}
