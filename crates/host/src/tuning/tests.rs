//! Texts and numbers on every system, and real processes where cgroups can be made.

use proptest::prelude::*;

use super::*;

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max nice priority         0                    0
Max new resource          1                    2                    x
";

#[test]
fn limits_of_a_process_are_read() {
    let limits = rlimits::parse(LIMITS).unwrap();
    let shown: Vec<String> = limits.iter().map(|(kind, limit)| format!("{kind}={limit}")).collect();
    assert_eq!(shown, ["RLIMIT_CPU=max:max", "RLIMIT_NICE=0:0", "RLIMIT_NOFILE=1024:524288"]);
    for line in ["Max open files  x y", "Max open files  5", "Max open files  5 4 files"] {
        let error = rlimits::parse(&format!("titles\n{line}\n")).unwrap_err();
        assert_eq!(error.line, line);
    }
}

#[test]
fn limits_have_the_form_of_oci() {
    let limit = |soft, hard| Rlimit::new(soft, hard).unwrap();
    let limits = Rlimits::from([
        (RlimitKind::OpenFiles, limit(Bound::At(5), Bound::At(9))),
        (RlimitKind::Core, limit(Bound::At(0), Bound::Max)),
    ]);
    let expected = serde_json::json!([
        {"type": "RLIMIT_CORE", "soft": 0, "hard": u64::MAX},
        {"type": "RLIMIT_NOFILE", "soft": 5, "hard": 9},
    ]);
    assert_eq!(oci_rlimits(&limits), expected);
    assert_eq!(Rlimit::new(Bound::Max, Bound::At(1)), None);
    assert_eq!(RlimitKind::parse("RLIMIT_NOFILE"), Some(RlimitKind::OpenFiles));
    assert_eq!(RlimitKind::parse("NOFILE"), None);
}

#[test]
fn values_outside_the_range_of_the_kernel_do_not_exist() {
    assert_eq!(
        [-21, -20, 19, 20].map(|value| Nice::new(value).is_some()),
        [false, true, true, false]
    );
    let realtime = [0, 1, 99, 100].map(|value| RealtimePriority::new(value).is_some());
    assert_eq!(realtime, [false, true, true, false]);
    assert_eq!([7, 8].map(|value| IoLevel::new(value).is_some()), [true, false]);
}

proptest! {
    #[test]
    fn numbers_of_policies_and_priorities_are_read_back(number in 0u32..0x8000, priority in 0i32..120) {
        if let Some(found) = numbers::io_priority(number) {
            prop_assert_eq!(numbers::io_priority(numbers::of_io_priority(found)), Some(found));
        }
        if let Some(found) = numbers::policy((number % 8) as i32, priority) {
            let (number, priority) = numbers::of_policy(found);
            prop_assert_eq!(numbers::policy(number, priority), Some(found));
        }
    }
}

#[cfg(not(target_os = "linux"))]
#[test]
fn other_systems_refuse_to_change_processes() {
    let error = system::set_nice(1, Nice::new(5).unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}
