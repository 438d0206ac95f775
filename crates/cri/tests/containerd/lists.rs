//! Lists that exceed gRPC's default limit.

use cri::v1;

use crate::support::{Runtime, container};

#[tokio::test]
async fn long_lists_are_returned_complete() {
    let runtime = Runtime::start().await;
    let sandbox = runtime.sandbox("many");
    let id = runtime.run(&sandbox).await;
    let padding = "x".repeat(200_000);
    let mut created = Vec::new();
    for number in 0..24 {
        let mut config = container(&format!("c{number}"), &["true"]);
        config.annotations.insert("padding".to_owned(), padding.clone());
        created.push(runtime.create(&id, &sandbox, config).await.unwrap());
    }
    let list = runtime.client.call(v1::ListContainersRequest::default()).await.unwrap();
    let bytes: usize =
        list.containers.iter().map(|container| container.annotations["padding"].len()).sum();
    assert!(bytes > 4 << 20, "{bytes}");
    let mut listed: Vec<_> = list.containers.into_iter().map(|container| container.id).collect();
    listed.sort();
    created.sort();
    assert_eq!(listed, created);
}
