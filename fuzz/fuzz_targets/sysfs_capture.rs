//! Captures of sysfs: a machine or an error; a recorded capture can be read again.

#![no_main]

use host::Capture;
use host::capture::capture;
use host::sysfs::observe;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(read) = Capture::parse(text) else { return };
    let _ = observe(&read);
    let recorded = capture(&read);
    assert_eq!(Capture::parse(&recorded.render()).ok(), Some(recorded));
});
