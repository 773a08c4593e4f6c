//! The arguments of a call as JSON text, while they are still coming in.

use umbel_core::{Object, PartialArg};

/// Writes arguments that come piece by piece as the text that the whole of them has in the end.
///
/// Pieces of the call's own arguments are written as they come. What lies deeper is left until the call is complete: the
/// text then simply goes on from where it stopped.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArgumentText {
    /// Bytes written so far.
    pub(crate) written: usize,
    /// What was written here.
    text: String,
    /// The argument whose text is open.
    open: Option<String>,
    arguments: usize,
    stopped: bool,
}

impl ArgumentText {
    /// One of which so many bytes were written, and nothing more is known.
    pub(crate) fn written(written: usize) -> Self {
        Self { written, stopped: true, ..Self::default() }
    }

    /// Writes a piece.
    pub(crate) fn add(&mut self, piece: &PartialArg, out: &mut String) {
        let before = out.len();
        self.stopped = self.stopped || self.write(piece, out).is_none();
        self.written += out.len() - before;
        self.text.push_str(out.get(before..).unwrap_or_default());
    }

    /// Whether the whole of them begins with what was written.
    pub(crate) fn begins(&self, args: Option<&Object>) -> bool {
        self.text.is_empty() || whole(args).starts_with(&self.text)
    }

    fn write(&mut self, piece: &PartialArg, out: &mut String) -> Option<()> {
        let name = piece.json_path.as_deref()?.strip_prefix("$.")?;
        if self.stopped || name.contains(['.', '[']) {
            return None;
        }
        if self.open.as_deref() == Some(name) {
            out.push_str(&escaped(piece.string_value.as_deref().unwrap_or_default())?);
            return Some(());
        }
        if self.open.take().is_some() {
            out.push('"');
        }
        out.push(if self.arguments == 0 { '{' } else { ',' });
        self.arguments += 1;
        out.push_str(&serde_json::to_string(name).ok()?);
        out.push(':');
        match piece {
            PartialArg { string_value: Some(text), .. } => {
                out.push('"');
                out.push_str(&escaped(text)?);
                self.open = Some(name.to_owned());
            }
            PartialArg { number_value: Some(number), .. } => out.push_str(&number.to_string()),
            PartialArg { bool_value: Some(flag), .. } => out.push_str(if *flag { "true" } else { "false" }),
            _ => out.push_str("null"),
        }
        Some(())
    }

    /// What is left to be written, now that all of them are there.
    pub(crate) fn rest(&self, args: Option<&Object>) -> String {
        whole(args).get(self.written..).unwrap_or_default().to_owned()
    }
}

fn whole(args: Option<&Object>) -> String {
    let text = args.and_then(|args| serde_json::to_string(args).ok());
    text.unwrap_or_else(|| "{}".to_owned())
}

/// Text as it stands between the quotes of a JSON string.
fn escaped(text: &str) -> Option<String> {
    let quoted = serde_json::to_string(text).ok()?;
    Some(quoted.get(1..quoted.len() - 1)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn piece(path: &str, value: serde_json::Value) -> PartialArg {
        let mut piece = PartialArg { json_path: Some(path.to_owned()), ..PartialArg::default() };
        match value {
            serde_json::Value::String(text) => piece.string_value = Some(text),
            serde_json::Value::Number(number) => piece.number_value = Some(number),
            serde_json::Value::Bool(flag) => piece.bool_value = Some(flag),
            _ => piece.null_value = Some(json!("NULL_VALUE")),
        }
        piece
    }

    #[test]
    fn pieces_and_the_rest_are_together_what_the_whole_is() {
        let args = json!({"city": "Z\u{fc}rich \"old\"\n", "days": 3, "sure": true, "none": null,
                          "deep": {"a": [1, 2]}, "last": "x"});
        let pieces = [
            piece("$.city", json!("Z\u{fc}ri")),
            piece("$.city", json!("ch \"old\"\n")),
            piece("$.days", json!(3)),
            piece("$.sure", json!(true)),
            piece("$.none", json!(null)),
            piece("$.deep.a[0]", json!(1)),
            piece("$.last", json!("x")),
        ];
        for cut in 0..=pieces.len() {
            let (mut text, mut said) = (ArgumentText::default(), String::new());
            for piece in pieces.iter().take(cut) {
                text.add(piece, &mut said);
            }
            assert_eq!(text.written, said.len());
            assert_eq!(ArgumentText::written(said.len()).rest(args.as_object()), text.rest(args.as_object()));
            said.push_str(&text.rest(args.as_object()));
            assert_eq!(said, args.to_string(), "after {cut} pieces");
        }
    }
}
