//! Limits on open connections, in total and per client address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Config;

/// The number of open connections per peer.
#[derive(Default)]
pub(crate) struct ConnectionSlots {
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// One open connection; dropping it frees the slot.
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    peer: IpAddr,
}

/// Why a connection gets no slot, as a message for its client.
pub(crate) struct SlotsFull(pub(crate) String);

impl ConnectionSlots {
    /// Takes a slot for a connection from `address`.
    pub(crate) fn take(
        self: &Arc<ConnectionSlots>,
        address: IpAddr,
        config: &Config,
    ) -> Result<ConnectionSlot, SlotsFull> {
        let peer = peer(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.values().sum::<usize>() >= config.max_connections {
            return Err(SlotsFull(format!("too many connections: the limit is {}", config.max_connections)));
        }
        let of_peer = taken.entry(peer).or_default();
        if *of_peer >= config.max_connections_per_peer {
            return Err(SlotsFull(format!("too many connections from {peer}: the limit is {of_peer}")));
        }
        *of_peer += 1;
        Ok(ConnectionSlot { slots: Arc::clone(self), peer })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

/// What counts as one peer: an IPv4 address, or the /64 network of an IPv6 host.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_in_total_and_per_peer() {
        let config = Config { max_connections: 3, max_connections_per_peer: 2, ..Config::default() };
        let slots = Arc::<ConnectionSlots>::default();
        let take = |address: &str| slots.take(address.parse().unwrap(), &config);
        let first = take("10.0.0.1").ok().unwrap();
        let _second = take("::ffff:10.0.0.1").ok().unwrap();
        let full = take("10.0.0.1").err().unwrap().0;
        assert_eq!(full, "too many connections from 10.0.0.1: the limit is 2");
        let _other = take("2001:db8::1").ok().unwrap();
        let full = take("10.0.0.2").err().unwrap().0;
        assert_eq!(full, "too many connections: the limit is 3");
        drop(first);
        assert!(take("2001:db8::ffff").is_ok());
        assert_eq!(peer("2001:db8::1:2:3:4".parse().unwrap()), peer("2001:db8::5".parse().unwrap()));
    }
}
