//! The queue, step by step.

use scheduling::queue::{BackoffConfig, Event, Queue};
use scheduling::{Plugin, queue};

fn popped(queue: &mut Queue, now: i64) -> Vec<String> {
    std::iter::from_fn(|| queue.pop(now)).map(|pod| pod.to_string()).collect()
}

#[test]
fn highest_priority_first_then_the_earliest() {
    let mut queue = Queue::default();
    for (pod, priority) in [("a", 1), ("b", 5), ("d", 5), ("e", 100), ("f", 0), ("g", -3)] {
        queue.add(pod, priority, false);
    }
    assert_eq!(popped(&mut queue, 0), ["e", "b", "d", "a", "f", "g"]);
}

#[test]
fn repeated_failures_increase_the_backoff() {
    let mut queue = Queue::default();
    queue.add("p", 0, false);
    let mut now = 0;
    for wait in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
        assert_eq!(popped(&mut queue, now), ["p"]);
        queue.failed("p", &[], now);
        assert_eq!(queue.next_due(), Some(now + wait));
        assert!(popped(&mut queue, now + wait - 1).is_empty());
        now += wait;
    }
}

#[test]
fn helpful_event_retries_an_unschedulable_pod() {
    let check = |event: Event, tried: bool| {
        let mut queue = Queue::default();
        queue.add("p", 0, false);
        queue.pop(0).unwrap();
        queue.failed("p", &[Plugin::NodeResourcesFit], 0);
        queue.on_event(event, 10);
        assert!(popped(&mut queue, 999).is_empty(), "{event:?}: it still backs off");
        assert_eq!(popped(&mut queue, 1_000).len(), usize::from(tried), "{event:?}");
    };
    check(Event::PodRemoved, true);
    check(Event::NodeAdded, true);
    check(Event::NodeResources, true);
    check(Event::NodeTaints, false);
    check(Event::PodAdded, false);
}

#[test]
fn pod_lacking_a_class_is_retried_when_a_node_changes() {
    assert!(queue::could_help(Plugin::QosResources, Event::NodeResources));
    assert!(queue::could_help(Plugin::QosResources, Event::PodRemoved));
    assert!(!queue::could_help(Plugin::QosResources, Event::NodeTaints));
}

#[test]
fn unschedulable_pods_are_retried_after_five_minutes() {
    let mut queue = Queue::default();
    queue.add("p", 0, false);
    queue.pop(0).unwrap();
    queue.failed("p", &[Plugin::NodeAffinity], 5);
    assert!(popped(&mut queue, 300_004).is_empty());
    assert_eq!(popped(&mut queue, 300_005), ["p"]);
}

#[test]
fn events_during_an_attempt_are_not_lost() {
    let check = |event: Event, expected: usize| {
        let mut queue = Queue::default();
        queue.add("p", 0, false);
        queue.pop(0).unwrap();
        queue.on_event(event, 1);
        queue.failed("p", &[Plugin::NodePorts], 2);
        assert_eq!(popped(&mut queue, 1_002).len(), expected, "{event:?}");
    };
    check(Event::PodRemoved, 1);
    check(Event::NodeLabels, 0);
}

#[test]
fn events_before_an_attempt_do_not_retry_it() {
    let mut queue = Queue::default();
    queue.add("p", 0, false);
    queue.add("q", 0, false);
    queue.pop(0).unwrap();
    queue.on_event(Event::PodRemoved, 1);
    queue.pop(2).unwrap();
    queue.failed("q", &[Plugin::NodePorts], 3);
    queue.failed("p", &[Plugin::NodePorts], 4);
    assert_eq!(popped(&mut queue, 2_000), ["p"]);
}

#[test]
fn gated_pod_waits_until_its_gates_are_removed() {
    let mut queue = Queue::default();
    queue.add("p", 10, true);
    queue.add("q", 0, false);
    queue.on_event(Event::NodeAdded, 0);
    assert_eq!(popped(&mut queue, 400_000), ["q"]);
    assert_eq!(queue.lengths().gated, 1);
    queue.add("p", 10, false);
    assert_eq!(popped(&mut queue, 400_000), ["p"]);
}

#[test]
fn removed_pod_is_never_attempted() {
    let mut queue = Queue::new(BackoffConfig { unschedulable: 10, ..BackoffConfig::default() });
    for pod in ["active", "aside", "backing off"] {
        queue.add(pod, 0, false);
    }
    assert_eq!(popped(&mut queue, 0).len(), 3);
    queue.failed("aside", &[Plugin::NodePorts], 0);
    queue.failed("backing off", &[], 0);
    queue.add("active", 0, false);
    for pod in ["active", "aside", "backing off", "never there"] {
        queue.remove(pod);
    }
    assert!(popped(&mut queue, 1_000_000).is_empty());
    assert_eq!((queue.lengths(), queue.next_due()), Default::default());
}

#[test]
fn changed_priority_takes_effect_at_once() {
    let mut queue = Queue::default();
    queue.add("a", 1, false);
    queue.add("b", 2, false);
    queue.add("a", 3, false);
    assert_eq!(popped(&mut queue, 0), ["a", "b"]);
}
