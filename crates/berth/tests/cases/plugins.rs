//! The admission plugin flags of `berth server` and `berth up`.

use std::process::Command;

#[test]
fn invalid_plugin_flags_are_rejected_before_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let check = |flag: &str, name: &str, expected: &str| {
        for command in ["server", "up"] {
            let output = Command::new(env!("CARGO_BIN_EXE_berth"))
                .args([command, flag, name, "--data-dir"])
                .arg(&data)
                .output()
                .unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{command} {flag} {name}: {error}");
            assert!(error.contains(expected), "{error}");
        }
    };
    let unknown = "admission plugin \"Nonsense\" is unknown; there are NamespaceLifecycle, ";
    check("--disable-admission-plugins", "ServiceAccount,Nonsense", unknown);
    check("--enable-admission-plugins", "Nonsense", unknown);
    let fixed = "admission plugin NamespaceLifecycle cannot be disabled; those that can are \
                 LimitRanger, ServiceAccount, ";
    check("--disable-admission-plugins", "NamespaceLifecycle", fixed);
    assert!(!data.exists());
}
