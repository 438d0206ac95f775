//! Backups of a running control plane, and restoring from them.

use std::fs;
use std::path::Path;

use berth::backup::{self, BackupError, Summary};
use berth::server::Settings;
use client::kind::{NAMESPACES, SERVICE_ACCOUNTS};
use client::{Client, Kind, Reflector, Scope};
use objects::types::PartialObjectMetadata;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::remote::{Plane, TIMEOUT, account};

async fn back_up(plane: &Plane, to: &Path) -> Summary {
    let connect = || Ok(plane.client("kubeconfig"));
    backup::make(&plane.settings.data_dir, to, connect, |_| ()).await.unwrap()
}

/// Backs up a data directory without a running server.
async fn back_up_alone(data_dir: &Path, to: &Path) -> anyhow::Result<Summary> {
    backup::make(data_dir, to, || anyhow::bail!("no server runs"), |_| ()).await
}

fn on_any_port(data_dir: &Path) -> Settings {
    let mut settings = Settings::new(data_dir.to_owned());
    settings.address.set_port(0);
    settings
}

async fn names(api: &Client) -> Vec<String> {
    let scope = Scope { namespace: "default".to_owned(), ..Scope::default() };
    let all = api.list_values(SERVICE_ACCOUNTS, &scope).await.unwrap();
    all.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_under_load_restores_keys_and_never_reuses_revisions() {
    let dir = tempfile::tempdir().unwrap();
    let (plane, address) = Plane::start(on_any_port(&dir.path().join("lost"))).await;
    let admin = plane.client("kubeconfig");
    for index in 0..50 {
        let object = account(&format!("before-{index}"));
        admin.create(SERVICE_ACCOUNTS, "default", &object).await.unwrap();
    }
    let ask = json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}
    });
    let token = admin
        .create_subresource_returning(SERVICE_ACCOUNTS, "default", "before-0", "token", &ask)
        .await
        .unwrap();

    // Other clients write meanwhile.
    let busy = admin.clone();
    let writer = tokio::spawn(async move {
        for index in 0..50 {
            let object = account(&format!("concurrent-{index}"));
            busy.create(SERVICE_ACCOUNTS, "default", &object).await.unwrap();
        }
    });
    let to = dir.path().join("backup");
    let summary = back_up(&plane, &to).await;
    writer.await.unwrap();
    assert!(summary.live && summary.contents.keys > 50, "{summary:?}");
    let mode = host::os::owners::mode(&fs::metadata(&to).unwrap());
    // Windows has no modes.
    assert!([0o700, 0].contains(&mode), "{mode:o}");

    // A watch continues after the backup.
    let scope = Scope { namespace: "default".to_owned(), ..Scope::default() };
    let name = |object: PartialObjectMetadata| object.metadata.name;
    let mut follower = Reflector::new(admin.clone(), SERVICE_ACCOUNTS, scope, name);
    admin.create(SERVICE_ACCOUNTS, "default", &account("lost")).await.unwrap();
    let change = timeout(TIMEOUT, follower.step()).await.unwrap().unwrap();
    assert!(format!("{change:?}").contains("\"lost\""), "{change:?}");
    plane.end().await;

    let place = dir.path().join("restored");
    let restored = backup::restore(&to, &place).unwrap();
    assert_eq!((restored.contents, restored.live), (summary.contents, false));
    let mut settings = Settings::new(place.clone());
    settings.address = address;
    let (plane, _) = Plane::start(settings).await;

    // The same authority is used: existing clients and tokens stay valid.
    let there = names(&admin).await;
    assert!((0..50).all(|index| there.contains(&format!("before-{index}"))), "{there:?}");
    assert!(!there.contains(&"lost".to_owned()), "{there:?}");
    let review = json!({
        "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
        "spec": {"token": token["status"]["token"]},
    });
    let reviews = objects::catalog::find("authentication.k8s.io", "v1", "tokenreviews").unwrap();
    let reviewed = admin.create(Kind::of(reviews), "", &review).await.unwrap();
    assert_eq!(reviewed["status"]["authenticated"], true, "{reviewed}");

    // The watch must not continue with outdated state.
    timeout(TIMEOUT, async {
        loop {
            match follower.step().await {
                Ok(step) if format!("{step:?}").contains("\"before-0\"") => break step,
                // The connection breaks first.
                _ => {}
            }
        }
    })
    .await
    .unwrap();
    let object = admin.create(SERVICE_ACCOUNTS, "default", &account("new")).await.unwrap();
    let revision: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(revision > summary.contents.revision.get() + 1_000_000, "{revision}");

    // Back up the restored directory offline.
    let data_dir = plane.settings.data_dir.clone();
    plane.end().await;
    let summary = back_up_alone(&data_dir, &dir.path().join("second")).await.unwrap();
    assert!(!summary.live && summary.contents.revision.get() >= revision, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_files_are_private_even_if_they_existed() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let settings = Settings { audit_log: Some(dir.path().join("audit")), ..on_any_port(&data_dir) };
    let mode_of = |path: &Path| host::os::owners::mode(&fs::metadata(path).unwrap());
    let private = [("store", 0o700), ("pki", 0o700), ("kubeconfig", 0o600), ("../audit", 0o600)];
    for _ in 0..2 {
        Plane::start(settings.clone()).await.0.end().await;
        for (name, mode) in private {
            let found = mode_of(&data_dir.join(name));
            // Windows has no modes.
            assert!([mode, 0].contains(&found), "{name}: {found:o}");
        }
        for name in ["store", "pki"] {
            host::os::owners::set_mode(&data_dir.join(name), 0o755).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_get_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (plane, _) = Plane::start(on_any_port(&dir.path().join("data"))).await;
    let viewer = plane.client("viewer.kubeconfig");
    let refused = viewer.document(apiserver::BACKUP_PATH).await.unwrap_err();
    assert_eq!((refused.status(), refused.reason()), (403, "Forbidden"));
    viewer.get::<Value>(NAMESPACES, "", "default").await.unwrap();
    let to = dir.path().join("backup");
    let refused = backup::make(&plane.settings.data_dir, &to, || Ok(viewer), |_| ()).await;
    let refused = format!("{:#}", refused.unwrap_err());
    assert!(refused.contains("User \"viewer\" cannot get path \"/berth/backup\""), "{refused}");
    assert!(!to.exists());
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "an unfinished backup stays behind");
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_overwritten_and_invalid_backups_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (plane, _) = Plane::start(on_any_port(&at("data"))).await;
    back_up(&plane, &at("backup")).await;
    plane.end().await;
    let other = Plane::start(on_any_port(&at("other"))).await.0;
    other.end().await;

    let twice = back_up_alone(&at("data"), &at("backup")).await;
    let twice = twice.unwrap_err().downcast::<BackupError>().unwrap();
    assert!(matches!(twice, BackupError::TargetExists(_)), "{twice}");
    let nothing = back_up_alone(&at("nowhere"), &at("b")).await;
    let nothing = nothing.unwrap_err().downcast::<BackupError>().unwrap();
    assert!(matches!(nothing, BackupError::NothingThere(_)), "{nothing}");
    assert!(!at("nowhere").exists());

    let refused = |from: &str, to: &str| -> BackupError {
        backup::restore(&at(from), &at(to)).unwrap_err().downcast().unwrap()
    };
    assert!(matches!(refused("backup", "data"), BackupError::StoreExists(_)));
    fs::remove_dir_all(at("other").join("store")).unwrap();
    let other = refused("backup", "other");
    assert!(matches!(&other, BackupError::OtherKeys { file, .. } if file == "ca.crt"), "{other}");
    assert!(matches!(refused("data", "new"), BackupError::NotABackup { .. }));
    let lock = berth::instance_lock::InstanceLock::acquire(&at("busy")).unwrap();
    assert!(matches!(refused("backup", "busy"), BackupError::Running(_)));
    drop(lock);

    // Restore in place, next to the existing keys.
    fs::remove_dir_all(at("data").join("store")).unwrap();
    let whole = fs::read(at("backup").join("store.base")).unwrap();
    fs::write(at("backup").join("store.base"), &whole[..whole.len() - 1]).unwrap();
    let damaged = format!("{:#}", backup::restore(&at("backup"), &at("data")).unwrap_err());
    assert!(damaged.contains("damaged"), "{damaged}");
    fs::write(at("backup").join("store.base"), whole).unwrap();
    backup::restore(&at("backup"), &at("data")).unwrap();
    let (plane, _) = Plane::start(on_any_port(&at("data"))).await;
    plane.client("kubeconfig").get::<Value>(NAMESPACES, "", "default").await.unwrap();
    plane.end().await;
}
