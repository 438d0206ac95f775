//! Renders pictures and a plan's tables as one self-contained page.
//!
//! Main entry: [`render_html`]. It works without scripts; a short script highlights a container's
//! cells when its row is hovered. Reasons and remedies come from the plan.

use std::fmt::Write as _;

use super::escape::xml;
use super::layout::Layout;
use super::svg::style;
use super::{Picture, svg};

/// The content of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub title: String,
    /// One sentence under the title: the summary.
    pub verdict: String,
    pub containers: Vec<ContainerRow>,
    pub refused: Vec<RefusedRow>,
}

/// The position of an owner in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerRef {
    pub picture: usize,
    pub index: usize,
}

/// A row for a placed container. Empty fields are shown empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRow {
    pub pod: String,
    pub container: String,
    pub machine: String,
    /// CPU list or group masks.
    pub cpus: String,
    pub memory: String,
    pub why: String,
    /// Gives the row the colour of its cells.
    pub owner: Option<OwnerRef>,
}

/// A row for a refused pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedRow {
    pub pod: String,
    pub reason: String,
    pub remedies: Vec<String>,
}

const STYLE: &str = "\
:root{color-scheme:light dark}
body{margin:0 auto;max-width:1180px;padding:32px 20px 64px;line-height:1.45;\
font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif;\
background:#fff;color:#1b2026}
h1{font-size:28px;margin:0 0 4px}
h2{font-size:19px;margin:36px 0 10px}
.verdict{margin:0 0 24px;font-size:16px;color:#66707b}
figure{margin:0 0 20px}
figure svg{max-width:100%;height:auto}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th{font-weight:600;text-align:left;color:#66707b;font-size:12.5px}
th,td{padding:7px 12px 7px 0;vertical-align:top;border-bottom:1px solid #e4e8ec}
td.list{font-variant-numeric:tabular-nums;overflow-wrap:anywhere;max-width:300px}
td.why{color:#4d5761}
.chip{display:block;width:18px;height:18px}
tr[data-o]:hover td{background:#f3f5f8}
.refused li{margin:0 0 14px}
.refused strong{display:block}
.refused ul{margin:4px 0 0;color:#4d5761}
.none{color:#66707b}
@media (prefers-color-scheme:dark){
body{background:#0d1117;color:#e6edf3}
.verdict,th,.none{color:#9aa4af}
th,td{border-color:#262d36}
td.why,.refused ul{color:#b4bdc7}
tr[data-o]:hover td{background:#161b22}
}
";

/// Fades all other cells of the picture while a row is hovered.
const SCRIPT: &str = "\
for (const row of document.querySelectorAll('tr[data-p]')) {
  const cells = document.querySelectorAll('#' + row.dataset.p + ' svg g:is(.fr,.sh,.re,[data-o])');
  const fade = on => cells.forEach(g =>
    g.classList.toggle('dim', on && g.dataset.o !== row.dataset.o));
  row.addEventListener('mouseenter', () => fade(true));
  row.addEventListener('mouseleave', () => fade(false));
}
";

/// Renders a page with the pictures, the placed containers with their reasons, and the refused
/// pods.
#[must_use]
pub fn render_html(pictures: &[Picture], page: &Page) -> String {
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n");
    let _ = write!(
        out,
        "<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"berth\">\n<title>{}</title>\n\
         <style>\n{STYLE}{}</style>\n</head>\n<body>\n",
        xml(&page.title),
        style::sheet()
    );
    // Patterns are defined once per page and shared by the pictures. An undisplayed element cannot
    // be referenced, so this one has no size instead.
    let _ = write!(
        out,
        "<svg class=\"berth\" width=\"0\" height=\"0\" style=\"position:absolute\" \
         aria-hidden=\"true\"><defs>\n{}</defs></svg>\n",
        style::PATTERNS
    );
    let _ = writeln!(out, "<h1>{}</h1>", xml(&page.title));
    if !page.verdict.is_empty() {
        let _ = writeln!(out, "<p class=\"verdict\">{}</p>", xml(&page.verdict));
    }
    for (index, picture) in pictures.iter().enumerate() {
        let _ = writeln!(out, "<figure id=\"m{index}\" class=\"scroll\">");
        svg::draw(picture, &format!("m{index}"), false, &mut out);
        out.push_str("</figure>\n");
    }
    refused(&page.refused, &mut out);
    containers(pictures, &page.containers, &mut out);
    let _ = write!(out, "<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn refused(rows: &[RefusedRow], out: &mut String) {
    if rows.is_empty() {
        return;
    }
    out.push_str("<h2>Refused</h2>\n<ul class=\"refused\">\n");
    for row in rows {
        let _ = write!(out, "<li><strong>{}</strong>{}", xml(&row.pod), xml(&row.reason));
        if !row.remedies.is_empty() {
            out.push_str("<ul>");
            for remedy in &row.remedies {
                let _ = write!(out, "<li>{}</li>", xml(remedy));
            }
            out.push_str("</ul>");
        }
        out.push_str("</li>\n");
    }
    out.push_str("</ul>\n");
}

fn containers(pictures: &[Picture], rows: &[ContainerRow], out: &mut String) {
    out.push_str("<h2>Containers</h2>\n");
    if rows.is_empty() {
        out.push_str("<p class=\"none\">None.</p>\n");
        return;
    }
    let layouts: Vec<Layout> = pictures.iter().map(Layout::new).collect();
    let machines = rows.iter().any(|row| !row.machine.is_empty());
    out.push_str("<div class=\"scroll\"><table>\n<thead><tr><th></th><th>Pod</th>");
    out.push_str("<th>Container</th>");
    if machines {
        out.push_str("<th>Machine</th>");
    }
    out.push_str("<th>CPUs</th><th>Memory</th><th>Why</th></tr></thead>\n<tbody>\n");
    for row in rows {
        let number = row
            .owner
            .and_then(|owner| Some((owner, layouts.get(owner.picture)?.number_of(owner.index)?)));
        match number {
            Some((owner, number)) => {
                let _ = write!(out, "<tr data-p=\"m{}\" data-o=\"{number}\"><td>", owner.picture);
                svg::chip(number, out);
                out.push_str("</td>");
            }
            None => out.push_str("<tr><td></td>"),
        }
        let _ = write!(out, "<td>{}</td><td>{}</td>", xml(&row.pod), xml(&row.container));
        if machines {
            let _ = write!(out, "<td>{}</td>", xml(&row.machine));
        }
        let _ = writeln!(
            out,
            "<td class=\"list\">{}</td><td class=\"list\">{}</td><td class=\"why\">{}</td></tr>",
            xml(&row.cpus),
            xml(&row.memory),
            xml(&row.why)
        );
    }
    out.push_str("</tbody>\n</table></div>\n");
}
