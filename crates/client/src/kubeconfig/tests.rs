//! Reading a kubeconfig, and the messages for an invalid one.

use super::*;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";

fn config(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters:\n- name: k\n  cluster: {{{cluster}}}\n\
         users:\n- name: u\n  user: {{{user}}}\n\
         contexts:\n- name: other\n  context: {{cluster: x, user: y}}\n\
         - name: c\n  context: {{cluster: k, user: u, namespace: space}}\n"
    )
}

fn parse(text: &str) -> Result<Kubeconfig, String> {
    Kubeconfig::parse(text, Path::new("dir/kubeconfig")).map_err(|error| error.to_string())
}

fn data(text: &str) -> String {
    STANDARD.encode(text)
}

#[test]
fn data_and_files_are_read_as_upstream_names_them() {
    let ca = data(PEM);
    let read = parse(&config(
        &format!("server: 'https://[::1]:6443/k8s/', certificate-authority-data: {ca}"),
        "client-certificate: pki/c.crt, client-key: pki/c.key, tokenFile: /t",
    ))
    .unwrap();
    let address = Address { host: "::1".to_owned(), port: 6443, base: "/k8s".to_owned() };
    assert_eq!(read.address.authority(), "[::1]:6443");
    assert_eq!((read.address, &*read.server_name, &*read.namespace), (address, "::1", "space"));
    assert_eq!(read.authority, Source::Inline(PEM.to_owned()));
    let file = |path: &str| Source::File(Path::new("dir").join(path));
    assert_eq!(read.identity, Some((file("pki/c.crt"), file("pki/c.key"))));
    assert_eq!(read.token, Some(Source::File(PathBuf::from("/t"))));
    let read = parse(&config(
        "server: 'https://api', certificate-authority: ca.crt, tls-server-name: kubernetes",
        "token: abc",
    ))
    .unwrap();
    assert_eq!((read.address.port, &*read.server_name), (443, "kubernetes"));
    assert_eq!(read.token, Some(Source::Inline("abc".to_owned())));
    // Secrets are not printed by accident.
    assert!(!format!("{read:?}").contains("abc"));
}

#[test]
fn mistakes_are_reported_with_position_and_remedy() {
    let ca = data(PEM);
    let good = format!("server: 'https://a:1', certificate-authority-data: {ca}");
    for (text, words) in [
        (String::new(), "the file is empty"),
        ("kind: Pod\n".to_owned(), "a kubeconfig is of kind Config"),
        ("kind: Config\n".to_owned(), "current-context is missing"),
        ("current-context: z\ncontexts: []\n".to_owned(), "no entry of contexts is named \"z\""),
        (
            "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
             clusters: [{name: l, cluster: {}}]\n"
                .to_owned(),
            "no entry of clusters is named \"k\"; there are l",
        ),
        (config("server: 'http://a'", ""), "does not begin with https://"),
        (config("server: 'https://me@a'", ""), "names a user"),
        (config("server: 'https://a'", ""), "certificate-authority-data is missing"),
        (config("certificate-authority: x", ""), "server is missing"),
        (
            config("server: 'https://a', certificate-authority-data: '%%'", ""),
            "clusters[0].cluster.certificate-authority-data: is not PEM text in base64",
        ),
        (config(&format!("{good}, insecure-skip-tls-verify: true"), ""), "would not be verified"),
        (config(&format!("{good}, proxy-url: 'http://p'"), ""), "dialled directly"),
        (config(&format!("{good}, servr: x"), ""), "did you mean \"server\""),
        (config(&good, "client-certificate: a.crt"), "client-key-data is missing"),
        (config(&good, "exec: {command: x}"), "users[0].user.exec: not supported; give a client"),
        (config(&good, "username: x"), "not supported"),
        (config(&good, "as: x"), "impersonation is not available"),
        (config(&good, "token: [1]"), "expected a text, found a list"),
    ] {
        let problem = parse(&text).unwrap_err();
        assert!(problem.starts_with("dir/kubeconfig: "), "{problem}");
        assert!(problem.contains(words), "{words}\n  is not in\n{problem}");
    }
}

#[test]
fn missing_kubeconfig_is_named() {
    let error = Kubeconfig::read(Path::new("/nowhere/kubeconfig")).unwrap_err();
    assert!(error.to_string().contains("/nowhere/kubeconfig"), "{error}");
}
