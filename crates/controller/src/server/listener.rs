//! TCP listener for a port that untrusted clients can reach.
//!
//! Clients are unauthenticated. A port has a limited number of slots. If all are taken, a new connection evicts an old
//! one: of the address with the most connections, the one that has been idle, or whose request has been incomplete, for
//! longest, or one of a namespace that has more than half of all slots. So a client that holds or floods connections
//! keeps out neither the API server nor kubelet, which would restart a process that does not answer its probes.

use crate::support::log;
use anyhow::{Context, Result};
use nix::errno::Errno;
use std::{
    cmp::Reverse,
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};

/// Backlog of connections, if the kernel allows it, for bursts of many clients.
const WAITING: u32 = 4096;

/// Number of evictions after which the accept loop yields to other tasks.
const AT_ONCE: usize = 16;

/// The slot of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSlot(Arc<Mutex<Use>>);

#[derive(Debug)]
struct Use {
    /// What is being answered about, while it is.
    answering: Option<String>,
    /// Start of the current state.
    since: Instant,
}

/// Guard that marks a slot as answering.
pub(crate) struct Answering(ConnectionSlot);

impl ConnectionSlot {
    fn new() -> Self {
        ConnectionSlot(Arc::new(Mutex::new(Use {
            answering: None,
            since: Instant::now(),
        })))
    }

    /// Marks the slot as waiting for the rest of a request.
    pub fn asks(&self) {
        self.set(None);
    }

    /// Marks the slot as answering until the guard is dropped.
    pub fn answers(&self) -> Answering {
        self.answers_about("")
    }

    /// Like `answers`, about a namespace.
    pub fn answers_about(&self, namespace: &str) -> Answering {
        self.set(Some(namespace.to_owned()));
        Answering(self.clone())
    }

    fn set(&self, answering: Option<String>) {
        let since = Instant::now();
        *self.now() = Use { answering, since };
    }

    fn now(&self) -> MutexGuard<'_, Use> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Accepts connections for ever, in a task of its own. Each connection gets a task and one of the slots.
///
/// # Errors
/// When the address cannot be bound.
pub(crate) fn accept<F>(
    address: SocketAddr,
    slots: usize,
    connected: impl Fn(TcpStream, ConnectionSlot) -> F + Send + 'static,
) -> Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = bind(address).with_context(|| format!("listen on {address}"))?;
    tokio::spawn(all(listener, slots, connected));
    Ok(())
}

/// Binds the address. `[::]` is dual-stack, and falls back to IPv4 on a node without IPv6.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match listen(address) {
        Err(error) => match instead(address, &error) {
            Some(other) => listen(other),
            None => Err(error),
        },
        bound => bound,
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // As `TcpListener::bind` does.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// Returns the fallback of `[::]` if binding failed because the node has no IPv6.
fn instead(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let errno = error.raw_os_error().map(Errno::from_raw);
    let has_none = matches!(errno, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL));
    (has_none && address.ip() == Ipv6Addr::UNSPECIFIED)
        .then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

async fn all<F>(
    listener: TcpListener,
    slots: usize,
    connected: impl Fn(TcpStream, ConnectionSlot) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (mut taken, mut lost) = (Vec::new(), 0);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let from = host(peer.ip());
                lost += usize::from(make_room(&mut taken, slots, from));
                let slot = ConnectionSlot::new();
                let task = tokio::spawn(connected(stream, slot.clone()));
                taken.push(Taken { from, slot, task });
                if lost >= AT_ONCE {
                    lost = 0;
                    yield_now().await;
                }
            }
            Err(error) => {
                let error = error.to_string();
                log::warn("cannot accept a connection", &[("error", &error)]);
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A slot that is taken.
struct Taken {
    from: IpAddr,
    slot: ConnectionSlot,
    task: JoinHandle<()>,
}

impl Taken {
    /// The namespace about which a request is being answered, if one is.
    fn answers_about(&self) -> Option<String> {
        self.slot.now().answering.clone()
    }
}

/// Returns the host of an address. An IPv6 host has a whole /64 prefix.
pub(crate) fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(prefix).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// Frees a slot for a connection from this host. Returns whether another connection was evicted.
fn make_room(taken: &mut Vec<Taken>, slots: usize, from: IpAddr) -> bool {
    taken.retain(|one| !one.task.is_finished());
    if taken.len() < slots {
        return false;
    }
    let (mut shares, mut crowds) = (HashMap::from([(from, 1)]), HashMap::new());
    for one in &*taken {
        *shares.entry(one.from).or_default() += 1;
        if let Some(namespace) = one.answers_about().filter(|name| !name.is_empty()) {
            *crowds.entry((one.from, namespace)).or_insert(0) += 1;
        }
    }
    let last = taken.iter().enumerate().max_by_key(|(_, one)| {
        let namespace = one.answers_about();
        let idle = namespace.is_none();
        // The API server asks about all namespaces, and one of them must not have all of its connections.
        let crowd = namespace.and_then(|namespace| crowds.get(&(one.from, namespace)));
        let is_crowded = crowd.is_some_and(|crowd| *crowd > slots / 2);
        let since = one.slot.now().since;
        (shares[&one.from], is_crowded, idle, Reverse(since))
    });
    if let Some((at, _)) = last {
        taken.swap_remove(at).task.abort();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    const PLACES: usize = 8;

    /// Echoes every byte by itself, and never answers a zero.
    async fn echo(mut stream: TcpStream, slot: ConnectionSlot) {
        let mut byte = [0];
        while matches!(stream.read(&mut byte).await, Ok(1)) {
            let namespace = if byte == [0] { "crowd" } else { "" };
            let _answering = slot.answers_about(namespace);
            if byte == [0] {
                sleep(Duration::from_secs(3600)).await;
            }
            if stream.write_all(&byte).await.is_err() {
                return;
            }
        }
    }

    #[tokio::test]
    async fn who_listens_on_all_addresses_is_found_by_ipv4_also_where_there_is_no_ipv6() {
        let listener = bind("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(all(listener, PLACES, echo));
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert!(says(&mut stream).await);
        let failed = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
        let other = Some("0.0.0.0:8080".parse().unwrap());
        let any = "[::]:8080".parse().unwrap();
        assert_eq!(instead(any, &failed(Errno::EAFNOSUPPORT)), other);
        assert_eq!(instead(any, &failed(Errno::EADDRNOTAVAIL)), other);
        assert_eq!(instead(any, &failed(Errno::EADDRINUSE)), None);
        let one = "[fd00::1]:8080".parse().unwrap();
        assert_eq!(instead(one, &failed(Errno::EADDRNOTAVAIL)), None);
    }

    async fn says(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        stream.write_all(b"x").await.is_ok() && matches!(stream.read(&mut byte).await, Ok(1))
    }

    #[tokio::test]
    async fn who_is_idle_for_longest_makes_room_and_who_is_being_answered_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(all(listener, PLACES, echo));
        let connect = async || TcpStream::connect(address).await.unwrap();
        let mut first = connect().await;
        assert!(says(&mut first).await);
        let mut idle = connect().await;
        assert!(says(&mut idle).await);
        let mut others = Vec::new();
        for _ in 2..PLACES {
            others.push(connect().await);
        }
        for other in &mut others {
            assert!(says(other).await);
        }
        assert!(says(&mut first).await, "all have a place");
        let mut more = connect().await;
        assert!(says(&mut more).await);
        assert!(!says(&mut idle).await, "nobody was idle for longer");
        first.write_all(&[0]).await.unwrap();
        for _ in 0..2 * PLACES {
            assert!(says(&mut connect().await).await);
        }
        let still = timeout(Duration::from_millis(50), first.read(&mut [0])).await;
        assert!(still.is_err(), "it is being answered");
    }

    #[tokio::test]
    async fn whoever_has_most_places_makes_room_and_whoever_comes_has_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(all(listener, PLACES, echo));
        let connect = async |from: u8| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 0, from], 0).into()).unwrap();
            socket.connect(address).await.unwrap()
        };
        let mut quiet = connect(2).await;
        assert!(says(&mut quiet).await);
        let mut many = Vec::new();
        for _ in 0..4 * PLACES {
            many.push(connect(3).await);
            let last = many.last_mut().unwrap();
            assert!(says(last).await);
            last.write_all(&[0]).await.unwrap();
        }
        assert!(says(&mut quiet).await, "others have more");
        assert!(says(&mut connect(4).await).await);
    }

    #[tokio::test]
    async fn of_one_host_a_namespace_with_more_than_half_of_the_places_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(all(listener, PLACES, echo));
        let connect = async || TcpStream::connect(address).await.unwrap();
        let mut quiet = Vec::new();
        for _ in 0..PLACES / 2 - 1 {
            quiet.push(connect().await);
            assert!(says(quiet.last_mut().unwrap()).await);
        }
        let mut crowd = Vec::new();
        for _ in 0..=4 * PLACES {
            crowd.push(connect().await);
            let last = crowd.last_mut().unwrap();
            assert!(says(last).await);
            last.write_all(&[0]).await.unwrap();
            sleep(Duration::from_millis(2)).await;
        }
        for one in &mut quiet {
            assert!(says(one).await, "it has not asked meanwhile");
        }
        let last = crowd.last_mut().unwrap();
        let still = timeout(Duration::from_millis(50), last.read(&mut [0])).await;
        assert!(still.is_err(), "it is being answered");
    }

    #[test]
    fn addresses_of_one_host_count_as_one() {
        let of = |text: &str| host(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("fd00:1:2:3::1"), of("fd00:1:2:3:ffff::2"));
        assert_ne!(of("fd00:1:2:3::1"), of("fd00:1:2:4::1"));
    }
}
