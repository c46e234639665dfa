//! Connections whose peers have not proved yet that they belong to the job.
//!
//! Their number is bounded, so under a flood some are closed. Addresses of the hosts file have a
//! limit of their own, which other addresses cannot use up. Among the others, a connection of the
//! network with the most connections is closed: an attacker may have many addresses, but rarely in
//! many networks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Greatest number of connections of addresses in the hosts file; each needs a thread and a file.
const LISTED_MAX: usize = 256;
/// Greatest number of connections of other addresses.
const UNLISTED_MAX: usize = 128;
/// Prefix lengths of IPv4 networks by which connections are counted, the widest network first.
const V4_BITS: [u32; 3] = [16, 24, 32];
/// Prefix lengths of IPv6 networks by which connections are counted, the widest network first.
const V6_BITS: [u32; 3] = [48, 64, 128];

/// All connections that have not proved anything yet.
#[derive(Default)]
pub(crate) struct Strangers {
    rooms: Mutex<Rooms>,
}

#[derive(Default)]
struct Rooms {
    /// Addresses of the hosts file whose names were resolved.
    addresses: BTreeSet<IpAddr>,
    /// In order of arrival.
    listed: VecDeque<Stranger>,
    unlisted: VecDeque<Stranger>,
}

/// A connection that has not proved anything yet.
pub(crate) struct Stranger {
    /// Number of the connection, in order of arrival.
    pub(crate) number: u64,
    pub(crate) address: IpAddr,
    pub(crate) stream: Arc<TcpStream>,
}

impl Strangers {
    /// Adds an address of the hosts file.
    pub(crate) fn list(&self, address: IpAddr) {
        self.guard().addresses.insert(address.to_canonical());
    }

    /// Adds a connection; if there are too many, closes one.
    pub(crate) fn add(&self, stranger: Stranger) {
        let mut rooms = self.guard();
        let is_listed = rooms.addresses.contains(&stranger.address.to_canonical());
        let (room, num_max) = match is_listed {
            true => (&mut rooms.listed, LISTED_MAX),
            false => (&mut rooms.unlisted, UNLISTED_MAX),
        };
        room.push_back(stranger);
        if room.len() > num_max
            && let Some(oldest) = room.remove(gives_way(room))
        {
            oldest.stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Removes a connection; false if it was closed before.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let mut rooms = self.guard();
        let Rooms {
            listed, unlisted, ..
        } = &mut *rooms;
        [listed, unlisted].into_iter().any(|room| {
            let at = room.binary_search_by_key(&number, |stranger| stranger.number);
            at.ok().and_then(|at| room.remove(at)).is_some()
        })
    }

    fn guard(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the position of the connection to close: the oldest one of the address with the most
/// connections, within the narrow network with the most, within the wide network with the most.
fn gives_way(room: &VecDeque<Stranger>) -> usize {
    let mut candidates: Vec<usize> = (0..room.len()).collect();
    for level in 0..V4_BITS.len() {
        let network_of = |at: &usize| network(room[*at].address, level);
        let mut nums: BTreeMap<(bool, u128), usize> = BTreeMap::new();
        for at in &candidates {
            *nums.entry(network_of(at)).or_default() += 1;
        }
        let most = nums.values().max().copied();
        candidates.retain(|at| nums.get(&network_of(at)).copied() == most);
    }
    candidates[0]
}

/// Returns the network of an address: whether it is IPv6, and the prefix.
fn network(address: IpAddr, level: usize) -> (bool, u128) {
    match address.to_canonical() {
        IpAddr::V4(address) => (
            false,
            u128::from(address.to_bits() >> (32 - V4_BITS[level])),
        ),
        IpAddr::V6(address) => (true, address.to_bits() >> (128 - V6_BITS[level])),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A list of strangers to which connections from some addresses are added, numbered in order.
    struct Filled {
        strangers: Strangers,
        listener: TcpListener,
        number: u64,
    }

    impl Filled {
        fn new(listed: &[&str]) -> Self {
            let strangers = Strangers::default();
            let parsed = listed.iter().map(|address| address.parse().unwrap());
            parsed.for_each(|address| strangers.list(address));
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Self {
                strangers,
                listener,
                number: 0,
            }
        }

        /// Adds a connection; returns its number.
        fn add(&mut self, address: &str) -> u64 {
            let stream = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            drop(self.listener.accept().unwrap());
            self.strangers.add(Stranger {
                number: self.number,
                address: address.parse().unwrap(),
                stream: Arc::new(stream),
            });
            self.number += 1;
            self.number - 1
        }
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_gives_way() {
        let mut filled = Filled::new(&[]);
        let alone = filled.add("10.1.0.1");
        let many: Vec<u64> = (0..UNLISTED_MAX).map(|_| filled.add("10.0.0.2")).collect();
        assert!(filled.strangers.remove(alone), "it is of another address");
        assert!(!filled.strangers.remove(many[0]), "it gave way");
        assert!(filled.strangers.remove(many[1]));
    }

    #[test]
    fn many_addresses_of_one_network_count_as_one_source() {
        let mut filled = Filled::new(&[]);
        let alone = filled.add("10.1.0.1");
        let of_v6 = filled.add("2001:db8:1::1");
        for i in 0..5_000 {
            filled.add(&format!("10.0.{}.{}", i / 250, i % 250 + 1));
        }
        assert!(filled.strangers.remove(alone), "it is of another network");
        assert!(filled.strangers.remove(of_v6), "it is of another network");
    }

    #[test]
    fn many_networks_of_one_provider_of_ipv6_count_as_one_source() {
        let mut filled = Filled::new(&[]);
        let alone = filled.add("2001:db8:1::1");
        for i in 0..500 {
            filled.add(&format!("2001:db8:0:{i:x}::1"));
        }
        assert!(filled.strangers.remove(alone), "it is of another network");
    }

    #[test]
    fn addresses_of_the_hosts_file_have_room_of_their_own() {
        let mut filled = Filled::new(&["10.0.0.1"]);
        let listed = filled.add("10.0.0.1");
        let mapped = filled.add("::ffff:10.0.0.1");
        for i in 0..5_000 {
            // Each connection from another network, among them the network of the listed address.
            filled.add(&format!("10.{}.{}.7", i % 250, i / 250));
        }
        assert!(filled.strangers.remove(listed));
        assert!(filled.strangers.remove(mapped));
    }
}
