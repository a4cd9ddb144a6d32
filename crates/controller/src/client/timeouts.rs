//! Timeouts of responses, up to the end of the body: a response that stalls in the middle would block its caller.

use crate::{client::prune::Prune, support::watch_health::Watches};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::BoxError;

/// Timeout of a read of one object, and of a request about a lease. Its sum with the renew deadline stays below the lease
/// duration, after which another process takes the lease.
pub const TIMEOUT: Duration = Duration::from_secs(4);

/// Timeout of a write. It may take as long as the API server waits for one admission webhook (`timeoutSeconds`, at most
/// 30), and then goes on without it, or says that it failed. A leader that loses its lease meanwhile ends, and with it
/// its writes.
const PATIENCE_WITH_WRITES: Duration = Duration::from_secs(34);

/// Timeout of a list or watch. The API server gives up after a minute (`--request-timeout`), and an earlier timeout
/// would restart a list of many pages.
const PATIENCE_WITH_MANY: Duration = Duration::from_secs(60);

/// Time limits of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub begin: Duration,
    pub end: Option<Duration>,
}

impl Limits {
    pub const ONE: Limits = Limits {
        begin: TIMEOUT,
        end: Some(TIMEOUT),
    };

    pub const WRITE: Limits = Limits {
        begin: PATIENCE_WITH_WRITES,
        end: Some(PATIENCE_WITH_WRITES),
    };

    pub const MANY: Limits = Limits {
        begin: PATIENCE_WITH_MANY,
        end: Some(PATIENCE_WITH_MANY),
    };

    /// Limits of a watch, which the API server ends after the requested time.
    pub fn watch(asked: Option<Duration>) -> Self {
        Limits {
            begin: PATIENCE_WITH_MANY,
            end: asked.map(|asked| asked + PATIENCE_WITH_MANY),
        }
    }
}

/// The error of a response that exceeds its limit.
pub(crate) fn timeout_error(limit: Duration) -> BoxError {
    format!("the API server did not answer in {} s", limit.as_secs()).into()
}

/// An open watch.
pub(crate) struct Watched {
    pub watches: Watches,
    /// Its resource path.
    pub of: String,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watches.ended(&self.of);
    }
}

/// A response body with a deadline, pruned to the needed fields.
pub struct Timed<B> {
    body: B,
    end: Option<(Pin<Box<Sleep>>, Duration)>,
    prune: Option<Prune>,
    watched: Option<Watched>,
}

impl<B> Timed<B> {
    pub(crate) fn new(
        body: B,
        begun: Instant,
        limits: Limits,
        prune: Option<Prune>,
        watched: Option<Watched>,
    ) -> Self {
        let end = limits
            .end
            .map(|limit| (Box::pin(sleep_until(begun + limit)), limit));
        Timed {
            body,
            end,
            prune,
            watched,
        }
    }
}

impl<B> Body for Timed<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Data that has arrived is used, however late.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            match (&frame, &self.watched) {
                (Some(Ok(_)), Some(watched)) => watched.watches.heard(&watched.of),
                _ => self.watched = None,
            }
            let prune = &mut self.prune;
            let needed = |frame: Result<Frame<Bytes>, B::Error>| {
                let frame = frame.map_err(Into::into)?;
                match (prune, frame.data_ref()) {
                    (Some(prune), Some(data)) => Ok(Frame::data(prune.next(data)?.into())),
                    _ => Ok(frame),
                }
            };
            return Poll::Ready(frame.map(needed));
        }
        let Some((end, limit)) = &mut self.end else {
            return Poll::Pending;
        };
        ready!(end.as_mut().poll(context));
        Poll::Ready(Some(Err(timeout_error(*limit))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.prune {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}
