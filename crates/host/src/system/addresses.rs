//! By which address a machine is reached: [`internal`], chosen as upstream chooses a node's.
//!
//! First what its name means, if that is an address of its own; else the address with which it would
//! speak to the world, which is that of the interface of the default route. Sends nothing: a datagram
//! socket that is connected only looks up the route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// Somewhere else, of the ranges kept for documentation: never a neighbour.
const ELSEWHERE_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ELSEWHERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The address of a machine of this name; `None` on one without a network. Waits for the resolver.
#[must_use]
pub fn internal(hostname: &str) -> Option<IpAddr> {
    by_name(hostname).or_else(by_route)
}

/// What the name means here. An IPv4 address goes before one of IPv6.
fn by_name(hostname: &str) -> Option<IpAddr> {
    let found = (hostname, 0).to_socket_addrs().ok()?;
    let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).filter(usable).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.into_iter().find(|address| is_ours(*address))
}

/// The address with which this machine would speak to the world.
fn by_route() -> Option<IpAddr> {
    let from = |any: IpAddr, to: IpAddr| -> Option<IpAddr> {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(SocketAddr::new(to, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(usable)
    };
    from(Ipv4Addr::UNSPECIFIED.into(), ELSEWHERE_V4.into())
        .or_else(|| from(Ipv6Addr::UNSPECIFIED.into(), ELSEWHERE_V6.into()))
}

/// Whether others could reach it.
fn usable(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// Whether an interface of this machine has it: only then can a socket have it.
#[must_use]
pub fn is_ours(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_others_could_reach_are_taken() {
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
    fn an_address_of_this_machine_is_told_from_others() {
        assert!(is_ours(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_ours(ELSEWHERE_V4.into()));
    }

    #[test]
    fn what_is_found_is_ours() {
        for name in ["localhost", "no such name"] {
            if let Some(address) = internal(name) {
                assert!(usable(&address) && is_ours(address), "{name}: {address}");
            }
        }
    }
}
