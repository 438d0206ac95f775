//! Rectangles of styled characters that can be placed side by side, stacked and framed.
//!
//! Main type: [`Block`]. A character is one column wide; it knows nothing of machines.

use super::super::layout::Use;

/// The style of a piece of text if colours are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Faint,
    Used(Use),
}

/// Text in one tone.
#[derive(Clone, Debug)]
pub(super) struct Span(pub(super) Tone, pub(super) String);

/// One line.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(pub(super) Vec<Span>);

/// Lines; short ones count as padded with blanks.
#[derive(Clone, Debug, Default)]
pub(super) struct Block(pub(super) Vec<Line>);

/// The characters frames are made of: corners from the top left clockwise, then lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    corners: [char; 4],
    across: char,
    down: char,
}

impl Frame {
    pub(super) const THIN: Frame =
        Frame { corners: ['┌', '┐', '┘', '└'], across: '─', down: '│' };
    pub(super) const THICK: Frame =
        Frame { corners: ['╔', '╗', '╝', '╚'], across: '═', down: '║' };
    pub(super) const ASCII: Frame = Frame { corners: ['+', '+', '+', '+'], across: '-', down: '|' };
    pub(super) const ASCII_THICK: Frame =
        Frame { corners: ['#', '#', '#', '#'], across: '=', down: '#' };
}

impl Line {
    pub(super) fn of(tone: Tone, text: impl Into<String>) -> Line {
        Line(vec![Span(tone, text.into())])
    }

    pub(super) fn push(&mut self, tone: Tone, text: impl Into<String>) {
        let text = text.into();
        match self.0.last_mut() {
            Some(Span(last, before)) if *last == tone => before.push_str(&text),
            _ => self.0.push(Span(tone, text)),
        }
    }

    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|Span(_, text)| text.chars().count()).sum()
    }

    fn pad(&mut self, width: usize) {
        let missing = width.saturating_sub(self.width());
        if missing > 0 {
            self.push(Tone::Plain, " ".repeat(missing));
        }
    }

    /// Returns the line without trailing blanks.
    pub(super) fn trimmed(&self) -> Line {
        let mut line = self.clone();
        while let Some(Span(_, text)) = line.0.last_mut() {
            text.truncate(text.trim_end_matches(' ').len());
            if !text.is_empty() {
                break;
            }
            line.0.pop();
        }
        line
    }

    /// Cuts the line to `width` columns, with an ellipsis.
    pub(super) fn cut(&mut self, width: usize, ellipsis: &str) {
        if self.width() <= width {
            return;
        }
        let mut left = width.saturating_sub(ellipsis.chars().count());
        for Span(_, text) in &mut self.0 {
            let kept: String = text.chars().take(left).collect();
            left -= kept.chars().count();
            *text = kept;
        }
        self.push(Tone::Faint, ellipsis);
    }
}

impl Block {
    pub(super) fn width(&self) -> usize {
        self.0.iter().map(Line::width).max().unwrap_or(0)
    }

    pub(super) fn push(&mut self, line: Line) {
        self.0.push(line);
    }

    pub(super) fn below(&mut self, other: Block) {
        self.0.extend(other.0);
    }

    /// Appends another block on the right, with a blank column between.
    pub(super) fn beside(&mut self, other: Block) {
        let width = self.width();
        let height = self.0.len().max(other.0.len());
        self.0.resize_with(height, Line::default);
        for (line, more) in self.0.iter_mut().zip(other.0) {
            line.pad(width + 1);
            for Span(tone, text) in more.0 {
                line.push(tone, text);
            }
        }
    }

    /// Returns the block in a frame of at least `width` columns and `height` lines.
    pub(super) fn framed(
        mut self,
        title: &Line,
        frame: Frame,
        width: usize,
        height: usize,
    ) -> Block {
        self.0.resize_with(self.0.len().max(height.saturating_sub(2)), Line::default);
        let inner = self.width().max(title.width() + 2).max(width.saturating_sub(4));
        let [top_left, top_right, bottom_right, bottom_left] = frame.corners;
        let across = |n: usize| frame.across.to_string().repeat(n);
        let edge = frame.down.to_string();

        let mut top = Line::of(Tone::Faint, top_left);
        match title.width() {
            0 => top.push(Tone::Faint, across(inner + 2)),
            taken => {
                top.push(Tone::Faint, format!("{} ", frame.across));
                for Span(tone, text) in &title.0 {
                    top.push(*tone, text.clone());
                }
                top.push(Tone::Faint, format!(" {}", across(inner - 1 - taken)));
            }
        }
        top.push(Tone::Faint, top_right);
        let mut lines = vec![top];
        for mut line in self.0 {
            line.pad(inner);
            let mut framed = Line::of(Tone::Faint, format!("{edge} "));
            for Span(tone, text) in line.0 {
                framed.push(tone, text);
            }
            framed.push(Tone::Faint, format!(" {edge}"));
            lines.push(framed);
        }
        lines.push(Line::of(
            Tone::Faint,
            format!("{bottom_left}{}{bottom_right}", across(inner + 2)),
        ));
        Block(lines)
    }
}
