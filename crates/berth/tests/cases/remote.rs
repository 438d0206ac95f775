//! The HTTPS client with a control plane and the kubeconfigs that it writes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth::server::{Server, Settings};
use berth::tasks::TaskError;
use client::kind::{NAMESPACES, PODS, SERVICE_ACCOUNTS};
use client::{Client, DeleteOptions, Kubeconfig, PatchKind, Reflector, Remote, Scope, Timeouts};
use objects::types::PartialObjectMetadata;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Plane {
    pub(crate) settings: Settings,
    stop: watch::Sender<bool>,
    over: tokio::task::JoinHandle<Result<(), TaskError>>,
}

impl Plane {
    pub(crate) async fn start(settings: Settings) -> (Plane, SocketAddr) {
        let server = Server::start(&settings).await.unwrap();
        let address = server.address();
        let (stop, stopping) = watch::channel(false);
        let over = tokio::spawn(server.serve(stopping));
        (Plane { settings, stop, over }, address)
    }

    pub(crate) fn client(&self, file: &str) -> Client {
        let config = Kubeconfig::read(&self.settings.data_dir.join(file)).unwrap();
        let remote = Remote::new(config, "berth-test", Timeouts::default()).unwrap();
        Client::new(Arc::new(remote), "test")
    }

    pub(crate) async fn end(self) {
        self.stop.send(true).unwrap();
        timeout(TIMEOUT, self.over).await.unwrap().unwrap().unwrap();
    }
}

pub(crate) fn account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread")]
async fn client_works_over_https_and_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(dir.path().join("data"));
    settings.address.set_port(0);
    let (plane, address) = Plane::start(settings.clone()).await;
    let admin = plane.client("kubeconfig");

    // Objects are created and deleted, and errors have their reasons.
    let made = admin.create(SERVICE_ACCOUNTS, "default", &account("a")).await.unwrap();
    let again = admin.create(SERVICE_ACCOUNTS, "default", &account("a")).await.unwrap_err();
    assert!(again.is_already_there(), "{again}");
    let label = json!({"metadata": {"labels": {"x": "y z=&"}}});
    let wrong =
        admin.patch(SERVICE_ACCOUNTS, "default", "a", PatchKind::Merge, &label).await.unwrap_err();
    assert_eq!((wrong.status(), wrong.reason()), (422, "Invalid"));
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let stranger = DeleteOptions::of_uid("another");
    let conflict = admin.delete(SERVICE_ACCOUNTS, "default", "a", &stranger).await.unwrap_err();
    assert!(conflict.is_conflict(), "{conflict}");
    admin.delete(SERVICE_ACCOUNTS, "default", "a", &DeleteOptions::of_uid(uid)).await.unwrap();

    // Lists are paged, and a watch resumes where it ended.
    for index in 0..501 {
        let object = account(&format!("s{index:03}"));
        admin.create(SERVICE_ACCOUNTS, "default", &object).await.unwrap();
    }
    let scope = Scope { namespace: "default".to_owned(), ..Scope::default() };
    let name = |object: PartialObjectMetadata| object.metadata.name;
    let mut reflector = Reflector::new(admin.clone(), SERVICE_ACCOUNTS, scope, name);
    let listed = timeout(TIMEOUT, reflector.step()).await.unwrap().unwrap();
    let shown = format!("{listed:?}");
    assert!(shown.contains("\"s000\"") && shown.contains("\"s500\""), "{shown}");
    admin.create(SERVICE_ACCOUNTS, "default", &account("later")).await.unwrap();
    timeout(TIMEOUT, async {
        while !format!("{:?}", reflector.step().await.unwrap()).contains("\"later\"") {}
    })
    .await
    .unwrap();

    // A viewer's write is rejected.
    let viewer = plane.client("viewer.kubeconfig");
    assert!(viewer.list_values(PODS, &Scope::default()).await.unwrap().is_empty());
    let refused = viewer.create(SERVICE_ACCOUNTS, "default", &account("b")).await.unwrap_err();
    assert_eq!((refused.status(), refused.reason()), (403, "Forbidden"));

    // The same client reaches the restarted server.
    plane.end().await;
    assert!(admin.get::<Value>(NAMESPACES, "", "default").await.is_err());
    settings.address = address;
    let (plane, _) = Plane::start(settings).await;
    admin.get::<Value>(NAMESPACES, "", "default").await.unwrap();
    plane.end().await;
}
