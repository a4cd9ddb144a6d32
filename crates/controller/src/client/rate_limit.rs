//! Rate limit of requests.
//!
//! An API server with priority and fairness (`pkg/util/flowcontrol` of k8s.io/apiserver, by default since Kubernetes
//! 1.20) queues flows fairly and tells refused requests how long to wait, better than a client could. Its responses
//! name the FlowSchema. If a response names none, a limit on our side protects other clients.

use http::{Response, StatusCode, header};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// `ResponseHeaderMatchedFlowSchemaUID` in `pkg/apis/flowcontrol` of k8s.io/api.
const FLOW_SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";

/// Maximum pause for which the API server's `Retry-After` is followed.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// Number of requests that may be made.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Requests a second, on average.
    pub rate: f64,
    /// Requests at once.
    pub burst: u32,
    /// Whether the limit applies only if the API server does not limit requests itself.
    pub yields: bool,
}

impl Budget {
    /// Returns the configured rate, or else a budget of 20 a second that yields to the API server's own limits.
    #[must_use]
    pub fn of(rate: Option<f64>) -> Self {
        Budget {
            rate: rate.unwrap_or(20.0).max(1.0),
            burst: 40,
            yields: rate.is_none(),
        }
    }
}

pub(crate) struct RateLimit {
    budget: Budget,
    state: Mutex<State>,
}

struct State {
    /// The time of the next request, if all requests had been spread evenly.
    next: Instant,
    /// No request begins before this time.
    held_until: Instant,
    /// Whether the API server limits requests.
    is_limited_there: bool,
}

impl RateLimit {
    pub fn new(budget: Budget) -> Self {
        let now = Instant::now();
        let state = State {
            next: now,
            held_until: now,
            is_limited_there: false,
        };
        RateLimit {
            budget,
            state: Mutex::new(state),
        }
    }

    /// Like [`new`](Self::new), with the whole burst.
    pub fn unused(budget: Budget) -> Self {
        let limit = Self::new(budget);
        let now = Instant::now();
        let before = now.checked_sub(limit.longest_burst()).unwrap_or(now);
        {
            let mut state = limit.state();
            (state.next, state.held_until) = (before, before);
        }
        limit
    }

    /// Whether the whole burst may be made.
    pub fn is_unused(&self) -> bool {
        let used_from = self.state().next + self.longest_burst();
        used_from <= Instant::now()
    }

    /// The time after which the whole burst may be made again.
    fn longest_burst(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.budget.burst) / self.budget.rate)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may begin.
    pub async fn wait(&self) {
        let mut until = self.turn();
        while until > Instant::now() {
            sleep_until(until).await;
            // The API server may have asked for a longer pause meanwhile.
            until = self.state().held_until;
        }
    }

    /// Returns when the next request may begin. After a hold, requests are spread again.
    fn turn(&self) -> Instant {
        let now = Instant::now();
        let mut state = self.state();
        let is_held = state.held_until > now;
        if self.budget.yields && state.is_limited_there && !is_held {
            return now;
        }
        let apart = Duration::from_secs_f64(1.0 / self.budget.rate);
        let earliest = now.checked_sub(self.longest_burst()).unwrap_or(now);
        let turn = state.next.max(earliest).max(state.held_until);
        state.next = turn + apart;
        turn.max(now)
    }

    /// Notes a request without a response: the next server may be another one.
    pub fn unanswered(&self) {
        self.state().is_limited_there = false;
    }

    /// Applies a response's headers to later requests.
    pub fn answered<B>(&self, answer: &Response<B>) {
        self.state().is_limited_there = answer.headers().contains_key(FLOW_SCHEMA);
        // Overloaded filters answer in plain text (`tooManyRequests` in apiserver/pkg/server/filters). A JSON `Status`
        // concerns only its own request, such as an eviction that a disruption budget delays.
        if let Some(pause) = retry_after(answer)
            && !is_json(answer)
        {
            let until = Instant::now() + pause.min(LONGEST_HOLD);
            let mut state = self.state();
            state.held_until = state.held_until.max(until);
        }
    }
}

/// Returns the pause that the API server demands of a refused request (`Retry-After` of API priority and fairness).
fn retry_after<B>(answer: &Response<B>) -> Option<Duration> {
    let refusals = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    let refused = refusals.contains(&answer.status());
    let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = seconds.parse().ok()?;
    refused.then(|| Duration::from_secs(seconds))
}

pub(super) fn is_json<B>(answer: &Response<B>) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the milliseconds for which each of twenty simultaneous requests waits.
    fn turns(limit: &RateLimit) -> Vec<u128> {
        let now = Instant::now();
        let turn = |_| (limit.turn() - now).as_millis();
        (0..20).map(turn).collect()
    }

    fn limit(yields: bool) -> RateLimit {
        RateLimit::new(Budget {
            rate: 10.0,
            burst: 5,
            yields,
        })
    }

    fn answer(status: u16, headers: &[(&str, &str)]) -> Response<()> {
        let begun = Response::builder().status(status);
        let add = |answer: http::response::Builder, (name, value): &(&str, &str)| {
            answer.header(*name, *value)
        };
        headers.iter().fold(begun, add).body(()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_spread_after_a_burst() {
        let limit = limit(false);
        tokio::time::advance(Duration::from_secs(60)).await;
        let turns = turns(&limit);
        assert_eq!(turns[..5], [0; 5], "{turns:?}");
        assert!(turns[19] >= 1300 && turns[19] <= 1500, "{turns:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_api_server_limits_requests_nobody_else_does_unless_a_person_said_so() {
        let fair = answer(200, &[(FLOW_SCHEMA, "1")]);
        for (yields, waits) in [(true, false), (false, true)] {
            let limit = limit(yields);
            limit.answered(&fair);
            assert_eq!(turns(&limit)[19] > 0, waits, "{yields}");
        }
        let limit = limit(true);
        assert!(turns(&limit)[19] > 0, "nothing is known yet");
        limit.answered(&fair);
        assert_eq!(turns(&limit), [0; 20], "nobody waits for former turns");
        limit.answered(&answer(502, &[]));
        assert!(turns(&limit)[19] > 0, "that was another");
        limit.answered(&fair);
        limit.unanswered();
        assert!(turns(&limit)[19] > 0, "nobody is there");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_api_server_asks_for_is_waited_for_whoever_limits_requests() {
        for yields in [true, false] {
            let limit = limit(yields);
            limit.answered(&answer(200, &[(FLOW_SCHEMA, "1")]));
            let held = [(FLOW_SCHEMA, "1"), ("retry-after", "3")];
            limit.answered(&answer(429, &held));
            let turns = turns(&limit);
            assert_eq!(turns[0], 3000);
            assert!(turns[19] > 4000, "not all at once: {turns:?}");
            let begun = Instant::now();
            let told = async {
                sleep_until(begun + Duration::from_secs(2)).await;
                limit.answered(&answer(503, &[("retry-after", "3600")]));
            };
            tokio::join!(limit.wait(), told);
            assert!(begun.elapsed() >= LONGEST_HOLD, "{:?}", begun.elapsed());
        }
    }
}
