//! JSON in one form only, in the manner of RFC 8785: what is equal is written equally.

use std::fmt::Write;

use serde_json::{Number, Value};
use smallvec::SmallVec;
use umbel_core::Object;

/// The largest number up to which a float has every whole number.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// Writes a value: objects sorted by key, no white space.
pub(crate) fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(object) => write_object(out, object, |_| true),
    }
}

/// Writes an object with those of its keys that `keep` says yes to.
pub(super) fn write_object(out: &mut String, object: &Object, keep: impl Fn(&str) -> bool) {
    let mut fields: SmallVec<[(&str, &Value); 8]> = SmallVec::new();
    for (key, value) in object {
        if keep(key) {
            fields.push((key, value));
        }
    }
    // By UTF-16 code units, as in JavaScript. Within ASCII that is the order of bytes.
    if fields.iter().all(|(key, _)| key.is_ascii()) {
        fields.sort_unstable_by_key(|(key, _)| *key);
    } else {
        fields.sort_unstable_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    }
    out.push('{');
    for (index, (key, value)) in fields.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_text(out, key);
        out.push(':');
        write_value(out, value);
    }
    out.push('}');
}

/// Writes a string.
pub(super) fn write_text(out: &mut String, text: &str) {
    // All bytes are looked at, without an early end, so that many are at once.
    let escapes = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    if !text.bytes().fold(false, |any, byte| any | escapes(byte)) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        // Escapes of serde_json are those of the RFC. A string cannot fail to be written.
        out.push_str(&serde_json::to_string(text).unwrap_or_default());
    }
}

fn write_number(out: &mut String, number: &Number) {
    if let Some(number) = number.as_u64() {
        return write_digits(out, number);
    }
    // Whole numbers are one and the same however they were written. Others, and large ones, are written exactly:
    // the RFC would make floats of them, and two that differ could become one.
    let whole =
        number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() < WHOLE);
    // Writing to a string cannot fail.
    let _ = match whole {
        #[allow(clippy::cast_possible_truncation)]
        Some(float) => write!(out, "{}", float as i64),
        None => write!(out, "{number}"),
    };
}

/// Most numbers are small, and formatting costs more than they are worth.
fn write_digits(out: &mut String, number: u64) {
    if number >= 10 {
        write_digits(out, number / 10);
    }
    #[allow(clippy::cast_possible_truncation)]
    out.push(char::from(b'0' + (number % 10) as u8));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn canonical(value: &Value) -> String {
        let mut out = String::new();
        write_value(&mut out, value);
        out
    }

    #[test]
    fn what_is_equal_is_written_equally() {
        let given = json!({"b": [1.0, -0.0, 1.5, true, null], "a": {"é": "x\"\n", "e": 10.0}, "\u{10000}": 1, "\u{e000}": 2});
        // U+10000 is a pair of surrogates, which sort before U+E000.
        let expected =
            "{\"a\":{\"e\":10,\"é\":\"x\\\"\\n\"},\"b\":[1,0,1.5,true,null],\"\u{10000}\":1,\"\u{e000}\":2}";
        assert_eq!(canonical(&given), expected);
    }

    #[test]
    fn large_whole_numbers_stay_apart() {
        assert_ne!(canonical(&json!(9_007_199_254_740_992u64)), canonical(&json!(9_007_199_254_740_993u64)));
        assert_ne!(canonical(&json!(u64::MAX)), canonical(&json!(u64::MAX - 1)));
        assert_ne!(canonical(&json!(1e300)), canonical(&json!(2e300)));
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((".{0,4}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_json_and_its_own_canonical_form(value in values()) {
            let once = canonical(&value);
            let read: Value = serde_json::from_str(&once).unwrap();
            prop_assert_eq!(canonical(&read), once);
        }
    }
}
