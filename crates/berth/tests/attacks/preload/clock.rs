//! A library for `LD_PRELOAD` that moves the wall clock of a process: the seconds in the file
//! `MOVED_CLOCK` are added to the real time. The test compiles it with rustc.
//!
//! Monotonic clocks are not moved, so timers work as usual.

use std::ffi::{c_int, c_long};

const CLOCK_REALTIME: c_int = 0;

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: c_long = 113;

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

fn offset() -> i64 {
    let file = std::env::var_os("MOVED_CLOCK");
    let text = file.and_then(|file| std::fs::read_to_string(file).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or_default()
}

/// Replaces the function of the C library, which `std::time` calls.
///
/// # Safety
///
/// `time` is a valid pointer, as for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    // SAFETY: the kernel checks the pointer.
    let status = unsafe { syscall(CLOCK_GETTIME, clock, time) };
    if status == 0 && clock == CLOCK_REALTIME {
        // SAFETY: the kernel has written to it.
        unsafe { (*time).seconds += offset() };
    }
    status as c_int
}
