use super::*;
use crate::support::metrics::Metrics;

const MINUTE: Duration = Duration::from_secs(60);

fn queue(longest: Duration) -> Queue {
    Queue::new(
        Backoff {
            longest,
            ..Backoff::FAILURES
        },
        Metrics::default().of_queue("volume"),
    )
}

fn waiting(queue: &Queue) -> i64 {
    queue.metrics.depth.get()
}

#[tokio::test(start_paused = true)]
async fn a_name_that_changes_while_it_is_worked_on_comes_again_and_never_twice_at_once() {
    let queue = queue(MINUTE);
    queue.push("", "a");
    queue.push("", "a");
    assert_eq!(queue.next().await, "a");
    queue.push("", "a");
    assert_eq!(waiting(&queue), 0, "somebody works on it");
    queue.done("a", Outcome::Done);
    assert_eq!(queue.next().await, "a");
    queue.done("a", Outcome::Done);
    assert_eq!(waiting(&queue), 0);
}

#[tokio::test(start_paused = true)]
async fn news_of_a_failure_does_not_shorten_its_pause() {
    let queue = queue(MINUTE);
    queue.push("", "a");
    let before = Instant::now();
    assert_eq!(queue.next().await, "a");
    queue.push_later("", "a", MINUTE);
    queue.done("a", Outcome::RequeueAfter(Duration::from_secs(4)));
    queue.push_later("", "a", Duration::ZERO);
    assert_eq!(queue.next().await, "a");
    assert_eq!((Instant::now() - before).as_secs(), 4);
    queue.done("a", Outcome::Done);
    queue.push_later("", "a", Duration::from_secs(2));
    assert_eq!(queue.next().await, "a", "nobody else would look");
    assert_eq!((Instant::now() - before).as_secs(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_fails_waits_twice_as_long_each_time() {
    let queue = queue(Duration::from_secs(6));
    queue.push("", "a");
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let before = Instant::now();
        assert_eq!(queue.next().await, "a");
        pauses.push((Instant::now() - before).as_secs());
        queue.done("a", Outcome::Failed);
    }
    assert_eq!(pauses, [0, 1, 2, 4, 6]);
    queue.push("", "a");
    assert_eq!(queue.next().await, "a", "a change is looked at, at once");
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_vain_is_looked_at_ever_more_rarely_until_it_changes() {
    let hour = MINUTE * 60;
    let backoff = Backoff {
        first: MINUTE,
        longest: hour,
    };
    let queue = queue(MINUTE);
    queue.push("", "a");
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let before = Instant::now();
        assert_eq!(queue.next().await, "a");
        pauses.push((Instant::now() - before).as_secs() / 60);
        queue.done("a", Outcome::RequeueWithBackoff(backoff));
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    let wait = async |changes: bool| {
        let before = Instant::now();
        assert_eq!(queue.next().await, "a");
        if changes {
            queue.push("", "a");
        }
        queue.done("a", Outcome::RequeueWithBackoff(backoff));
        before.elapsed().as_secs() / 60
    };
    assert_eq!(wait(false).await, 60);
    queue.push("", "a");
    assert_eq!(wait(false).await, 0, "a change is looked at, at once");
    assert_eq!(wait(false).await, 1, "and then all begins anew");
    assert_eq!(wait(true).await, 2);
    assert_eq!(wait(false).await, 0, "it changed while it was looked at");
    assert_eq!(wait(false).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_vain_is_looked_at_ever_more_rarely_also_if_a_look_takes_several_turns() {
    let backoff = Backoff {
        first: MINUTE,
        longest: MINUTE * 60,
    };
    let queue = queue(MINUTE);
    queue.push("", "a");
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let before = Instant::now();
        for _ in 0..3 {
            assert_eq!(queue.next().await, "a");
            queue.done("a", Outcome::GoOn(Duration::ZERO));
        }
        assert_eq!(queue.next().await, "a");
        pauses.push((Instant::now() - before).as_secs() / 60);
        queue.done("a", Outcome::RequeueWithBackoff(backoff));
    }
    assert_eq!(pauses, [0, 1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn what_is_pushed_while_it_waits_is_not_looked_at_once_more_when_it_was_due() {
    let queue = queue(MINUTE);
    queue.push("", "a");
    assert_eq!(queue.next().await, "a");
    queue.done("a", Outcome::RequeueAfter(Duration::from_secs(4)));
    queue.push("", "a");
    assert_eq!(queue.next().await, "a");
    queue.done("a", Outcome::Done);
    let more = tokio::time::timeout(MINUTE, queue.next()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_has_many_names_delays_another_by_one() {
    let queue = queue(MINUTE);
    for number in 0..300 {
        queue.push("many", &format!("m{number}"));
    }
    queue.push("few", "f0");
    queue.push("few", "f1");
    queue.push("", "nobody's");
    let mut had = Vec::new();
    for _ in 0..6 {
        let name = queue.next().await;
        queue.done(&name, Outcome::RequeueAfter(MINUTE));
        had.push(name);
    }
    assert_eq!(had, ["m0", "f0", "nobody's", "m1", "f1", "m2"]);
    assert_eq!(waiting(&queue), 297);
    while waiting(&queue) > 0 {
        let name = queue.next().await;
        queue.done(&name, Outcome::Done);
    }
    // Keys that wait for a retry keep their owners.
    tokio::time::advance(MINUTE).await;
    let mut again = Vec::new();
    for _ in 0..6 {
        let name = queue.next().await;
        queue.done(&name, Outcome::Done);
        again.push(name);
    }
    assert_eq!(again, ["f0", "m0", "nobody's", "f1", "m1", "m2"]);
    let state = queue.state();
    assert!(state.owners.is_empty() && state.ready.of.is_empty() && state.due.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_has_time_is_looked_at_once_and_then() {
    let queue = queue(MINUTE);
    let begun = Instant::now();
    let seconds = |seconds| begun + Duration::from_secs(seconds);
    queue.push_by("", "a", seconds(5));
    queue.push_by("", "a", seconds(9));
    assert_eq!(queue.next().await, "a");
    assert_eq!(begun.elapsed().as_secs(), 5);
    queue.push_by("", "a", seconds(10));
    queue.done("a", Outcome::Done);
    assert_eq!(queue.next().await, "a", "it changed while it was looked at");
    assert_eq!(begun.elapsed().as_secs(), 10);
    queue.done("a", Outcome::RequeueAfter(MINUTE));
    queue.push_by("", "a", seconds(15));
    assert_eq!(queue.next().await, "a");
    assert_eq!(begun.elapsed().as_secs(), 15);
    queue.done("a", Outcome::Done);
    let more = tokio::time::timeout(MINUTE * 2, queue.next()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(start_paused = true)]
async fn what_made_names_wait_may_be_over_for_all_of_them() {
    let queue = queue(MINUTE * 5);
    let before = Instant::now();
    for name in ["a", "b"] {
        queue.push("", name);
        assert_eq!(queue.next().await, name);
    }
    queue.done("a", Outcome::RequeueAfter(MINUTE * 5));
    queue.hurry();
    assert_eq!(queue.next().await, "a");
    queue.done("a", Outcome::Done);
    queue.done("b", Outcome::RequeueAfter(MINUTE));
    queue.hurry();
    assert_eq!(queue.next().await, "b");
    assert_eq!(Instant::now(), before);
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_ever_more_rarely_also_if_it_fails_in_a_later_turn() {
    let queue = queue(MINUTE);
    queue.push("", "a");
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let before = Instant::now();
        assert_eq!(queue.next().await, "a");
        queue.done("a", Outcome::GoOn(Duration::ZERO));
        assert_eq!(queue.next().await, "a");
        pauses.push((Instant::now() - before).as_secs());
        queue.done("a", Outcome::Failed);
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_key_fails_since_its_first_failure_until_it_does_not() {
    let queue = queue(MINUTE);
    let work = async |outcome| {
        queue.push("ns", "a");
        let name = queue.next().await;
        queue.done(&name, outcome);
        tokio::time::advance(Duration::from_secs(1)).await;
        queue.failing_for("a").as_secs()
    };
    assert_eq!(work(Outcome::Failed).await, 1);
    assert_eq!(work(Outcome::Failed).await, 2);
    assert_eq!(work(Outcome::Done).await, 0);
    assert_eq!(work(Outcome::Failed).await, 1);
    assert_eq!(queue.failing_for("b"), Duration::ZERO);
}
