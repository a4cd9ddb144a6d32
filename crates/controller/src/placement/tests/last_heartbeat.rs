use super::*;

#[test]
fn an_agent_that_was_dead_before_is_not_heard_of_until_it_speaks() {
    let nodes = Nodes::new(SILENCE);
    let said = |ago: i64| {
        let mut node = node("one", 0, Some(1));
        let then = Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(ago);
        node.status.last_heartbeat_time = Some(then.to_string());
        node
    };
    nodes.put(said(599));
    assert_eq!(nodes.silence("one"), None, "clocks differ");
    nodes.remove("one");
    nodes.put(said(601));
    assert!(nodes.silence("one").is_some());
    assert!(!nodes.is_unheard("one"), "nobody has listened yet");
    assert!(nodes.put(said(600)), "it speaks");
    assert_eq!(nodes.silence("one"), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_had_no_room_is_not_asked_again_for_ever_longer_or_until_it_has_more() {
    let nodes = nodes(&[("one", None), ("two", Some(5))]);
    let room = |size| nodes.select_node("a/b", "class", Bytes(size), of("v"));
    for minutes in [1, 2, 4] {
        assert_eq!(room(7).unwrap(), "one");
        nodes.record_exhausted("one", "class", Bytes(7), of("v"));
        assert!(room(7).is_err());
        assert_eq!(room(6).unwrap(), "one", "less may be had");
        assert_eq!(
            nodes.unfit_reason("one", "a/b", "other", Bytes(7), of("v")),
            None
        );
        let almost = Duration::from_secs(60 * minutes - 1);
        tokio::time::advance(almost).await;
        assert!(room(7).is_err());
        nodes.put(node("one", u32::try_from(minutes).unwrap(), None));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    nodes.put(node("two", 1, Some(5)));
    nodes.record_exhausted("two", "class", Bytes(5), of("v"));
    assert!(
        nodes
            .unfit_reason("two", "a/b", "class", Bytes(5), of("v"))
            .is_some()
    );
    nodes.put(node("two", 2, Some(6)));
    assert_eq!(
        nodes.unfit_reason("two", "a/b", "class", Bytes(5), of("v")),
        None
    );
    nodes.record_exhausted("two", "class", Bytes(5), of("v"));
    nodes.record_created("two", "other", Bytes(5));
    nodes.record_created("two", "class", Bytes(4));
    assert!(
        nodes
            .unfit_reason("two", "a/b", "class", Bytes(5), of("v"))
            .is_some()
    );
    nodes.record_created("two", "class", Bytes(5));
    assert_eq!(
        nodes.unfit_reason("two", "a/b", "class", Bytes(5), of("v")),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_silent_for_three_heartbeats_is_not_chosen_until_it_is_heard_again() {
    let nodes = nodes(&[("one", Some(10)), ("two", Some(30))]);
    tokio::time::advance(Duration::from_secs(180)).await;
    assert_eq!(nodes.silence("two"), None, "it may be late");
    nodes.put(node("one", 3, Some(10)));
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(
        nodes
            .select_node("a/b", "class", Bytes(5), of("v"))
            .unwrap(),
        "one"
    );
    assert_eq!(nodes.fell_silent(), ["two"]);
    assert!(nodes.fell_silent().is_empty(), "it is told once");
    let seen = Some("12:00:00".to_owned());
    assert_eq!(nodes.silent(), [("two".to_owned(), seen)].into());
    assert_eq!(nodes.count_silent(), 1);
    let silence = nodes.silence("two").unwrap();
    assert_eq!(silence.to_string(), "was last heard of at 12:00:00");
    let refused = nodes
        .select_node("a/b", "class", Bytes(20), of("v"))
        .unwrap_err();
    let words = refused.to_string();
    assert!(
        words.contains("the agent of node two was last heard of at 12:00:00"),
        "{words}"
    );
    // A repeated list is no heartbeat.
    assert!(!nodes.put(node("two", 0, Some(30))));
    assert!(nodes.silence("two").is_some());
    assert!(nodes.put(node("two", 4, Some(30))), "it is back");
    assert_eq!(nodes.silence("two"), None);
    assert_eq!(
        nodes
            .select_node("a/b", "class", Bytes(20), of("v"))
            .unwrap(),
        "two"
    );
}

#[test]
fn a_node_that_kubernetes_misses_is_not_chosen_until_its_agent_speaks() {
    let nodes = nodes(&[("one", Some(10)), ("two", Some(30))]);
    nodes.mark_missing("two");
    assert_eq!(
        nodes
            .select_node("a/b", "class", Bytes(5), of("v"))
            .unwrap(),
        "one"
    );
    assert!(nodes.absence("two").is_some());
    // The agent still does what was requested before.
    assert_eq!(nodes.silence("two"), None);
    assert!(nodes.fell_silent().is_empty());
    assert!(nodes.put(node("two", 1, Some(30))), "it is back");
    assert_eq!(
        nodes
            .select_node("a/b", "class", Bytes(5), of("v"))
            .unwrap(),
        "two"
    );
    assert_eq!(nodes.silence("three"), Some(LastHeartbeat::Never));
}

#[tokio::test(start_paused = true)]
async fn an_agent_whose_words_are_removed_is_silent_when_it_was_not_heard_for_as_long_as_others() {
    let nodes = nodes(&[("one", Some(10)), ("two", Some(30))]);
    tokio::time::advance(SILENCE / 2).await;
    nodes.put(node("two", 1, Some(30)));
    for name in ["one", "two"] {
        nodes.remove(name);
        assert_eq!(nodes.silence(name), None);
        assert_eq!(nodes.absence(name), Some(LastHeartbeat::Never));
    }
    tokio::time::advance(SILENCE / 2).await;
    let silence = nodes.silence("one").unwrap();
    assert_eq!(silence.to_string(), "was last heard of at 12:00:00");
    assert_eq!(nodes.fell_silent(), ["one"]);
    assert!(nodes.fell_silent().is_empty(), "it is told once");
    assert!(nodes.is_unheard("one") && !nodes.is_unheard("two"));
    nodes.put(node("one", 2, Some(10)));
    assert!(!nodes.is_unheard("one") && nodes.silence("one").is_none());
    assert!(
        !nodes.is_unheard("three"),
        "who waits to lead does not listen"
    );
    nodes.listen();
    assert!(!nodes.is_unheard("three"));
    tokio::time::advance(SILENCE).await;
    assert!(nodes.is_unheard("three"), "it listened to all for so long");
}
