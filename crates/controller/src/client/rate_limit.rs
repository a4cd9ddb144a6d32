//! How many requests are made.
//!
//! An API server with priority and fairness (`pkg/util/flowcontrol` of k8s.io/apiserver, by default since Kubernetes 1.20)
//! lets flows take turns and says who has to wait for how long, which it knows better than anybody here. It names
//! the FlowSchema in each answer. Where none is named, a limit of our own keeps work from crowding others out.

use http::{Response, StatusCode, header};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// `ResponseHeaderMatchedFlowSchemaUID` in `pkg/apis/flowcontrol` of k8s.io/api.
const FLOW_SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";

/// Nobody waits for longer because the API server says so.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// How many requests may be made.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// In a second, on average.
    pub rate: f64,
    /// At once.
    pub burst: u32,
    /// Only where the API server does not limit requests itself.
    pub yields: bool,
}

impl Budget {
    /// What a person asked for, or else as much as the API server lets us, and 20 a second where it does not say.
    #[must_use]
    pub fn of(rate: Option<f64>) -> Self {
        Budget {
            rate: rate.unwrap_or(20.0).max(1.0),
            burst: 40,
            yields: rate.is_none(),
        }
    }
}

pub(super) struct RateLimit {
    budget: Budget,
    state: Mutex<State>,
}

struct State {
    /// When the next request may start, if all so far had been spread evenly.
    next: Instant,
    /// No request begins before that.
    held_until: Instant,
    /// The API server limits requests.
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may start.
    pub async fn wait(&self) {
        let mut until = self.turn();
        while until > Instant::now() {
            sleep_until(until).await;
            // It may have been told to wait for longer meanwhile.
            until = self.state().held_until;
        }
    }

    /// When the next request may start. What was held does not start all at once.
    fn turn(&self) -> Instant {
        let now = Instant::now();
        let mut state = self.state();
        let is_held = state.held_until > now;
        if self.budget.yields && state.is_limited_there && !is_held {
            return now;
        }
        let apart = Duration::from_secs_f64(1.0 / self.budget.rate);
        let earliest = now.checked_sub(apart * self.budget.burst).unwrap_or(now);
        let turn = state.next.max(earliest).max(state.held_until);
        state.next = turn + apart;
        turn.max(now)
    }

    /// Nobody answered: whoever does next may be another.
    pub fn unanswered(&self) {
        self.state().is_limited_there = false;
    }

    /// Learns what an answer says of the requests that follow.
    pub fn answered<B>(&self, answer: &Response<B>) {
        self.state().is_limited_there = answer.headers().contains_key(FLOW_SCHEMA);
        // Filters that have too much to do speak in plain text (`tooManyRequests` in apiserver/pkg/server/filters).
        // A `Status` is of what was asked for alone, such as an eviction that a disruption budget holds up.
        if let Some(pause) = retry_after(answer)
            && !is_json(answer)
        {
            let until = Instant::now() + pause.min(LONGEST_HOLD);
            let mut state = self.state();
            state.held_until = state.held_until.max(until);
        }
    }
}

/// How long the API server has whoever it refuses wait (`Retry-After` of API priority and fairness).
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

    /// How many milliseconds each of twenty requests at once has to wait.
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
