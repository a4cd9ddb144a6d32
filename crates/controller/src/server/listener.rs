//! Listening on a port that strangers reach.
//!
//! Whoever connects does not say who it is, so a port has a number of places, and when all are taken, who
//! has been idle for longest loses its own: strangers who only hold connections keep nobody out, neither
//! the API server, which asks again, nor kubelet, which would end a process that does not answer.

use crate::support::log;
use anyhow::{Context, Result};
use nix::errno::Errno;
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep},
};

/// How many connections a port has at most.
const PLACES: usize = 32;

/// One of a port's places, of whoever is connected.
#[derive(Clone, Debug)]
pub(crate) struct Place(Arc<Mutex<Use>>);

#[derive(Debug)]
struct Use {
    answering: bool,
    /// Since when it does, or does not.
    since: Instant,
}

/// While this is held something is being answered.
pub(crate) struct Answering(Place);

impl Place {
    fn new() -> Self {
        Place(Arc::new(Mutex::new(Use {
            answering: false,
            since: Instant::now(),
        })))
    }

    /// What was asked is being answered from now on.
    pub fn answers(&self) -> Answering {
        self.set(true);
        Answering(self.clone())
    }

    fn set(&self, answering: bool) {
        let since = Instant::now();
        *self.now() = Use { answering, since };
    }

    fn now(&self) -> MutexGuard<'_, Use> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when nothing is being answered.
    fn idle_since(&self) -> Option<Instant> {
        let now = self.now();
        (!now.answering).then_some(now.since)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Listens for ever, in a task of its own, and gives every connection one, and a place.
///
/// # Errors
/// When the address cannot be listened on.
pub(crate) async fn accept<F>(
    address: SocketAddr,
    connected: impl Fn(TcpStream, Place) -> F + Send + 'static,
) -> Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = bind(address)
        .await
        .with_context(|| format!("listen on {address}"))?;
    tokio::spawn(all(listener, connected));
    Ok(())
}

/// `[::]` is all addresses of both kinds, and where there are none of the one kind, those of the other.
async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) => match instead(address, &error) {
            Some(other) => TcpListener::bind(other).await,
            None => Err(error),
        },
        bound => bound,
    }
}

/// Where else to listen than on `[::]`, if it could not be had because the node has no IPv6.
fn instead(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let errno = error.raw_os_error().map(Errno::from_raw);
    let has_none = matches!(errno, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL));
    (has_none && address.ip() == Ipv6Addr::UNSPECIFIED)
        .then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

async fn all<F>(listener: TcpListener, connected: impl Fn(TcpStream, Place) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut places = Vec::new();
    loop {
        match listener.accept().await {
            // Whoever finds no place is not answered, as if we were not there.
            Ok((stream, _)) if has_room(&mut places) => {
                let place = Place::new();
                let task = tokio::spawn(connected(stream, place.clone()));
                places.push((place, task));
            }
            Ok(_) => {}
            Err(error) => {
                let error = error.to_string();
                log::warn("cannot accept a connection", &[("error", &error)]);
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Whether there is another place, maybe of one who was idle.
fn has_room(places: &mut Vec<(Place, JoinHandle<()>)>) -> bool {
    places.retain(|(_, task)| !task.is_finished());
    if places.len() < PLACES {
        return true;
    }
    let idle = places.iter().enumerate();
    let idle = idle.filter_map(|(at, (place, _))| Some((place.idle_since()?, at)));
    let Some((_, at)) = idle.min() else {
        return false;
    };
    let (_, task) = places.swap_remove(at);
    task.abort();
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers every byte by itself, and a zero never.
    async fn echo(mut stream: TcpStream, place: Place) {
        let mut byte = [0];
        while matches!(stream.read(&mut byte).await, Ok(1)) {
            let _answering = place.answers();
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
        let listener = bind("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(all(listener, echo));
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
        tokio::spawn(all(listener, echo));
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
        assert!(says(&mut first).await);
        others.push(more);
        others.push(first);
        for other in &mut others {
            other.write_all(&[0]).await.unwrap();
        }
        // Each is being answered once its question was read.
        let mut refused = false;
        for _ in 0..200 {
            let mut late = connect().await;
            refused = !says(&mut late).await;
            if refused {
                break;
            }
            late.write_all(&[0]).await.unwrap();
            others.push(late);
        }
        assert!(refused, "there are more than {PLACES} connections");
    }
}
