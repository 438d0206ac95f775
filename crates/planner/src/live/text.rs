//! An explanation for a terminal.
//!
//! Main entry: [`render`]. Whether there are colours is the caller's to say.

use std::fmt::Write as _;

use super::{Explanation, NodeAnswer, Verdict};
use crate::report::text::{Look, containers, numa_nodes, remedies};

/// The explanation as text.
#[must_use]
pub fn render(of: &Explanation, look: Look) -> String {
    let name = match of.namespace.as_str() {
        "default" => of.name.clone(),
        namespace => format!("{namespace}/{}", of.name),
    };
    let about = format!("{} · {}", of.qos_class, of.phase);
    let mut out = format!("{}  {}\n", look.bold(&name), look.dim(&about));
    for said in &of.said {
        let _ = writeln!(out, "  {said}");
    }
    for answer in &of.nodes {
        out.push('\n');
        node(answer, look, &mut out);
    }
    out
}

fn node(answer: &NodeAnswer, look: Look, out: &mut String) {
    let verdict = match answer.verdict {
        Verdict::Has => look.green("has it"),
        Verdict::WouldTake => look.green("would take it now"),
        Verdict::Refuses => look.red("would refuse it now"),
        Verdict::Unknown => look.yellow("cannot be asked"),
    };
    let _ = writeln!(out, "{} {verdict}", look.bold(&answer.node));
    if !answer.containers.is_empty() {
        containers(&answer.containers, look, out);
    }
    if let Some(today) = &answer.today {
        let _ = writeln!(out, "  {today}");
    }
    for refusal in &answer.refusals {
        let _ = writeln!(out, "  {}: {}", look.red(&refusal.reason), refusal.message);
        if let Some(detail) = &refusal.detail {
            let _ = writeln!(out, "      {}", look.dim(detail));
        }
        // Remedies are looked for only where CPUs and memory are in the way.
        if refusal.detail.is_some() || !refusal.remedies.is_empty() {
            remedies(&refusal.remedies, "", look, out);
        }
    }
    if !answer.numa_nodes.is_empty() {
        let _ = writeln!(out, "  {}", look.dim("to choose from without it:"));
        numa_nodes(&answer.numa_nodes, out);
    }
}
