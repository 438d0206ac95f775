//! Counts the heap allocations of placing a container. A number, not a time, so that a regression
//! is detected on every machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use placement::demand::{QosClass, Role};
use placement::{Topology, plan};

use crate::machines::regular;
use crate::walks::{Settings, demand, node};

struct Counting;

thread_local! {
    // It is const; clippy for Windows checks the macro's other expansion and disagrees.
    #[allow(clippy::missing_const_for_thread_local)]
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: forwards everything to the system's allocator; counting touches only a thread-local that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

fn admitting(topology: &Topology, policy: usize) -> usize {
    let node = node(topology, &Settings { policy, ..Settings::default() }).unwrap();
    let ledger = node.empty_ledger();
    let demand = demand(1, &[(Role::App, 4000, 4, 0)], QosClass::Guaranteed);
    allocations(|| {
        plan(&node, &ledger, &demand).unwrap();
    })
}

#[test]
fn allocations_do_not_grow_with_the_machine() {
    let (small, large) = (regular(2, 4, 16, 2), regular(4, 16, 16, 1));
    for policy in 0..4 {
        let few = admitting(&small, policy);
        assert!(few <= MOST, "policy {policy}: {few} on 8 nodes");
        let many = admitting(&large, policy);
        assert!(many <= MOST + SPILL, "policy {policy}: {many} on 64 nodes");
    }
}

/// The answer itself (containers, their CPUs by pod and container) and the ledger's draft.
const MOST: usize = 12;

/// More cores or nodes than lists keep in place.
const SPILL: usize = 8;
