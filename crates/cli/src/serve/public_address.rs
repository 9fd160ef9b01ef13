//! Addresses of the internet, as opposed to those of this machine and of private networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is one of the internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Networks of IPv4 that are not of the internet, by their first address and the length of their prefix.
const RESERVED: [([u8; 4], u32); 16] = [
    ([0, 0, 0, 0], 8),       // this network
    ([10, 0, 0, 0], 8),      // private
    ([100, 64, 0, 0], 10),   // of providers
    ([127, 0, 0, 0], 8),     // this machine
    ([169, 254, 0, 0], 16),  // link, and metadata of clouds
    ([172, 16, 0, 0], 12),   // private
    ([192, 0, 0, 0], 24),    // protocols
    ([192, 0, 2, 0], 24),    // documentation
    ([192, 31, 196, 0], 24), // AS112
    ([192, 52, 193, 0], 24), // AMT
    ([192, 88, 99, 0], 24),  // 6to4
    ([192, 168, 0, 0], 16),  // private
    ([198, 18, 0, 0], 15),   // benchmarks
    ([198, 51, 100, 0], 24), // documentation
    ([203, 0, 113, 0], 24),  // documentation
    ([224, 0, 0, 0], 3),     // multicast, reserved, broadcast
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    let within = |(first, prefix): &([u8; 4], u32)| {
        let apart = bits ^ u32::from_be_bytes(*first);
        apart >> (32 - prefix) == 0
    };
    !RESERVED.iter().any(within)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    // unicast addresses of the internet, without those that stand for others
    match address.segments() {
        [0x2001, second, ..] if second < 0x0200 => false, // Teredo, ORCHID, benchmarks
        [0x2001, 0x0db8, ..] | [0x2002, ..] => false,     // documentation, 6to4
        [0x3fff, second, ..] if second < 0x1000 => false, // documentation
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_private_networks_are_not_public() {
        let is_public = |text: &str| is_public(text.parse().unwrap());
        for public in [
            "1.1.1.1",
            "9.255.255.255",
            "100.63.0.1",
            "172.32.0.1",
            "223.255.255.255",
            "2606:4700::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(public), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.0.8",
            "198.19.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "fc00::1",
            "fd00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2002:7f00:1::",
        ] {
            assert!(!is_public(private), "{private}");
        }
    }
}
