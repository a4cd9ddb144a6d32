//! How long the API server may take for an answer, to its end: whoever waits for one that stops in the
//! middle does nothing else.

use crate::client::prune::Prune;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::BoxError;

/// How long a request about one object may take. Together with the time in which the lease is
/// renewed it stays below the time after which others take it.
pub const TIMEOUT: Duration = Duration::from_secs(4);

/// The same for many objects: the API server gives up by itself after a minute (`--request-timeout`),
/// and whoever does so earlier begins a list of many pages anew.
const PATIENCE_WITH_MANY: Duration = Duration::from_secs(60);

/// What an answer may take.
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

    pub const MANY: Limits = Limits {
        begin: PATIENCE_WITH_MANY,
        end: Some(PATIENCE_WITH_MANY),
    };

    /// A watch, which the API server ends after the time that it was asked for.
    pub fn watch(asked: Option<Duration>) -> Self {
        Limits {
            begin: PATIENCE_WITH_MANY,
            end: asked.map(|asked| asked + PATIENCE_WITH_MANY),
        }
    }
}

/// What is said of an answer that takes longer.
pub(crate) fn late(limit: Duration) -> BoxError {
    format!("the API server did not answer in {} s", limit.as_secs()).into()
}

/// The body of an answer, which fails if it has not ended in time, and of which only what is needed comes out.
pub struct Timed<B> {
    body: B,
    end: Option<(Pin<Box<Sleep>>, Duration)>,
    prune: Option<Prune>,
}

impl<B> Timed<B> {
    pub(crate) fn new(body: B, begun: Instant, limits: Limits, prune: Option<Prune>) -> Self {
        let end = limits
            .end
            .map(|limit| (Box::pin(sleep_until(begun + limit)), limit));
        Timed { body, end, prune }
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
        // What is there is taken, however late.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
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
        Poll::Ready(Some(Err(late(*limit))))
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
