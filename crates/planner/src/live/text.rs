//! Renders an explanation for a terminal.
//!
//! Main entry: [`render`]. The caller decides about colours.

use std::fmt::Write as _;

use super::{Explanation, NodeExplanation, Verdict};
use crate::report::text::{TextStyle, containers, numa_nodes, remedies};

/// Renders the explanation as text.
#[must_use]
pub fn render(of: &Explanation, style: TextStyle) -> String {
    let name = match of.namespace.as_str() {
        "default" => of.name.clone(),
        namespace => format!("{namespace}/{}", of.name),
    };
    let about = format!("{} · {}", of.qos_class, of.phase);
    let mut out = format!("{}  {}\n", style.bold(&name), style.dim(&about));
    for messages in &of.messages {
        let _ = writeln!(out, "  {messages}");
    }
    for explanation in &of.nodes {
        out.push('\n');
        node(explanation, style, &mut out);
    }
    out
}

fn node(explanation: &NodeExplanation, style: TextStyle, out: &mut String) {
    let verdict = match explanation.verdict {
        Verdict::Has => style.green("has it"),
        Verdict::WouldTake => style.green("would take it now"),
        Verdict::Refuses => style.red("would refuse it now"),
        Verdict::Unknown => style.yellow("has no report"),
    };
    let _ = writeln!(out, "{} {verdict}", style.bold(&explanation.node));
    if !explanation.containers.is_empty() {
        containers(&explanation.containers, style, out);
    }
    if let Some(today) = &explanation.today {
        let _ = writeln!(out, "  {today}");
    }
    for refusal in &explanation.refusals {
        let _ = writeln!(out, "  {}: {}", style.red(&refusal.reason), refusal.message);
        if let Some(detail) = &refusal.detail {
            let _ = writeln!(out, "      {}", style.dim(detail));
        }
        // Remedies exist only for shortages of CPUs and memory.
        if refusal.detail.is_some() || !refusal.remedies.is_empty() {
            remedies(&refusal.remedies, "", style, out);
        }
    }
    if !explanation.numa_nodes.is_empty() {
        let _ = writeln!(out, "  {}", style.dim("free without it:"));
        numa_nodes(&explanation.numa_nodes, out);
    }
}
