//! The address of a machine: [`internal`], chosen as upstream chooses a node's address.
//!
//! The address of the host name is used if it is local; otherwise that of the interface with the
//! default route. No packet is sent: connecting a datagram socket only looks up the route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// A remote address from the ranges reserved for documentation, never on a local network.
const ELSEWHERE_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ELSEWHERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Returns the address of a machine with this name; `None` without a network. Blocks on the
/// resolver.
#[must_use]
pub fn internal(hostname: &str) -> Option<IpAddr> {
    by_name(hostname).or_else(by_route)
}

/// Resolves the name. An IPv4 address is preferred to an IPv6 one.
fn by_name(hostname: &str) -> Option<IpAddr> {
    let found = (hostname, 0).to_socket_addrs().ok()?;
    let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).filter(usable).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.into_iter().find(|address| is_ours(*address))
}

/// Returns the source address of outgoing traffic.
fn by_route() -> Option<IpAddr> {
    let from = |any: IpAddr, to: IpAddr| -> Option<IpAddr> {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(SocketAddr::new(to, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(usable)
    };
    from(Ipv4Addr::UNSPECIFIED.into(), ELSEWHERE_V4.into())
        .or_else(|| from(Ipv6Addr::UNSPECIFIED.into(), ELSEWHERE_V6.into()))
}

/// Returns true if other machines could reach the address.
fn usable(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// Returns true if an interface of this machine has the address: only then can a socket bind to it.
#[must_use]
pub fn is_ours(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reachable_addresses_are_used() {
        let check = |text: &str, taken: bool| {
            assert_eq!(usable(&text.parse().unwrap()), taken, "{text}");
        };
        check("10.0.0.1", true);
        check("fd00::1", true);
        check("127.0.0.1", false);
        check("::1", false);
        check("0.0.0.0", false);
        check("169.254.1.1", false);
        check("fe80::1", false);
        check("224.0.0.1", false);
        check("255.255.255.255", false);
    }

    #[test]
    #[cfg_attr(windows, ignore = "not on wine: it lets a socket have an address of others")]
    fn local_addresses_are_recognized() {
        assert!(is_ours(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_ours(ELSEWHERE_V4.into()));
    }

    #[test]
    fn the_internal_address_is_local() {
        for name in ["localhost", "no such name"] {
            if let Some(address) = internal(name) {
                assert!(usable(&address) && is_ours(address), "{name}: {address}");
            }
        }
    }
}
