//! Redacting a text that comes piece by piece.
//!
//! What is let through is, at every moment, the beginning of the redacted whole, however the text goes on: a piece of it
//! waits until nothing that comes can make it part of a match, or of another one. How the text is cut makes no difference.

use std::ops::Range;

use umbel_core::Result;

use super::detect::{Detector, Found};
use super::redact::{PiiBlocked, PiiRule};
use super::trace::{Known, Trace};

/// From how many bytes on it is not worth while to know how long exactly a text is that waits.
const LONG_WAIT: usize = 4096;

/// Redacts a text that comes piece by piece. What it gives, put together, is what its rules make of the whole text.
#[derive(Debug)]
pub struct StreamRedactor {
    rules: Vec<RuleStream>,
    lookback: usize,
    /// Redacted and not let through yet.
    held: String,
}

impl StreamRedactor {
    /// A redactor by these rules, each of which sees what those before it left. The last `lookback` characters at least
    /// are held back.
    pub fn new(rules: impl IntoIterator<Item = PiiRule>, lookback: usize) -> Self {
        let rules = rules.into_iter().map(RuleStream::new).collect();
        Self { rules, lookback, held: String::new() }
    }

    /// Takes the next piece. Gives what can be let through.
    ///
    /// An error says that the text holds what must not pass; nothing of that was let through. The redactor is of no use
    /// any more.
    pub fn push(&mut self, delta: &str) -> Result<String> {
        self.held.push_str(&through(&mut self.rules, delta, false)?);
        let waiting: usize = self.rules.iter().map(|rule| rule.waiting(self.lookback)).sum();
        let keep = self.lookback.saturating_sub(waiting);
        if keep == 0 {
            return Ok(std::mem::take(&mut self.held));
        }
        let mut last = self.held.char_indices().rev();
        let cut = last.nth(keep - 1).map_or(0, |(place, _)| place);
        Ok(self.held.drain(..cut).collect())
    }

    /// The text is complete. Gives what was held back.
    pub fn finish(mut self) -> Result<String> {
        let rest = through(&mut self.rules, "", true)?;
        Ok(self.held + &rest)
    }
}

/// Lets a piece go through all rules.
fn through(rules: &mut [RuleStream], delta: &str, ended: bool) -> Result<String, PiiBlocked> {
    let mut piece = delta.to_owned();
    for rule in rules {
        rule.text.push_str(&piece);
        piece = rule.settle(ended)?;
    }
    Ok(piece)
}

/// One rule on its way through a text.
#[derive(Debug)]
struct RuleStream {
    rule: PiiRule,
    /// What has come and is not settled, behind one character that is: patterns look back that far.
    text: String,
    /// Where the unsettled part begins.
    from: usize,
    /// Absent if nothing is settled before the end.
    trace: Option<Trace>,
    /// A match begins at `from`, and its marker was let through; where it ends is not known yet.
    marked: bool,
}

impl RuleStream {
    fn new(rule: PiiRule) -> Self {
        let trace = match &rule.detector {
            Detector::Pattern(pattern) => Some(Trace::new(&pattern.nfa)),
            Detector::Function(_) => None,
        };
        Self { rule, text: String::new(), from: 0, trace, marked: false }
    }

    /// How many characters wait, redacted as if nothing followed. If they are many, `limit` is near enough.
    fn waiting(&self, limit: usize) -> usize {
        if self.marked || limit == 0 {
            return 0;
        }
        let Detector::Pattern(pattern) = &self.rule.detector else {
            return self.unsettled().chars().take(limit).count();
        };
        if self.unsettled().len() > LONG_WAIT {
            return limit;
        }
        let chars = |text: Option<&str>| text.map_or(0, |text| text.chars().count());
        let (mut count, mut done) = (0, self.from);
        for place in pattern.find_all(&self.text, self.from) {
            count += chars(self.text.get(done..place.start));
            count += chars(self.text.get(place.clone()).map(|value| self.rule.replacement(value)).as_deref());
            done = place.end;
        }
        count + chars(self.text.get(done..))
    }

    fn unsettled(&self) -> &str {
        self.text.get(self.from..).unwrap_or_default()
    }

    /// Gives what is settled, redacted.
    fn settle(&mut self, ended: bool) -> Result<String, PiiBlocked> {
        let mut out = String::new();
        match &self.rule.detector {
            Detector::Function(_) if ended => out = self.whole()?,
            Detector::Function(_) => {}
            Detector::Pattern(_) => {
                while let Some(place) = self.next_match(ended, &mut out)? {
                    self.replace(&place, &mut out)?;
                }
                if !ended {
                    self.forget();
                }
            }
        }
        Ok(out)
    }

    /// The whole text, redacted.
    fn whole(&mut self) -> Result<String, PiiBlocked> {
        let changed = self.rule.change(&self.text)?;
        Ok(changed.unwrap_or_else(|| std::mem::take(&mut self.text)))
    }

    /// The next match that nothing can change any more. If there is none, what is settled was let through.
    fn next_match(&mut self, ended: bool, out: &mut String) -> Result<Option<Range<usize>>, PiiBlocked> {
        let (Detector::Pattern(pattern), Some(trace)) = (&self.rule.detector, &mut self.trace) else {
            return Ok(None);
        };
        if ended {
            let found = pattern.find_at(&self.text, self.from);
            if found.is_none() {
                out.push_str(self.unsettled());
                self.from = self.text.len();
            }
            return Ok(found.map(|found| found.place));
        }
        // While a match that begins right here may change, there is no need to look for another.
        if trace.settles(&self.text, self.from) {
            let found = pattern.find_at(&self.text, self.from);
            if let Some(found) = found.filter(|found| trace.settles(&self.text, found.depends_on)) {
                return Ok(Some(found.place));
            }
        }
        let known = trace.read(&self.text);
        let open = pattern.cut(&self.text, self.from, known.open.unwrap_or(self.text.len()));
        self.stop_if_certain(known)?;
        out.push_str(self.text.get(self.from..open).unwrap_or_default());
        self.from = open;
        self.mark_if_certain(known, out);
        Ok(None)
    }

    /// Stops as soon as there is a match, though it may still grow.
    fn stop_if_certain(&self, known: Known) -> Result<(), PiiBlocked> {
        let Detector::Pattern(pattern) = &self.rule.detector else { return Ok(()) };
        let begins_at =
            |start: usize| pattern.find_at(&self.text, start).is_some_and(|found| found.place.start == start);
        if self.rule.blocks() && pattern.keeps_matches() && known.certain.is_some_and(begins_at) {
            return Err(self.rule.blocked(pattern.find_all(&self.text, self.from).len()));
        }
        Ok(())
    }

    /// Lets a marker through as soon as there is a match, if it is the same wherever the match ends.
    fn mark_if_certain(&mut self, known: Known, out: &mut String) {
        let Detector::Pattern(pattern) = &self.rule.detector else { return };
        if self.marked || known.certain != Some(self.from) || !pattern.keeps_matches() {
            return;
        }
        let here = |found: Found| found.place.start == self.from && found.depends_on == self.from;
        let begins_here = || pattern.find_at(&self.text, self.from).is_some_and(here);
        if let Some(marker) = self.rule.marker().filter(|_| begins_here()) {
            out.push_str(&marker);
            self.marked = true;
        }
    }

    /// Puts what takes its place in the place of a match.
    fn replace(&mut self, place: &Range<usize>, out: &mut String) -> Result<(), PiiBlocked> {
        let Detector::Pattern(pattern) = &self.rule.detector else { return Ok(()) };
        if self.rule.blocks() {
            return Err(self.rule.blocked(pattern.find_all(&self.text, self.from).len()));
        }
        if !std::mem::take(&mut self.marked) {
            out.push_str(self.text.get(self.from..place.start).unwrap_or_default());
            out.push_str(&self.rule.replacement(self.text.get(place.clone()).unwrap_or_default()));
        }
        self.from = place.end;
        if let Some(trace) = &mut self.trace {
            trace.restart(self.from);
        }
        Ok(())
    }

    /// Drops what is settled, but for the last character of it.
    fn forget(&mut self) {
        let settled = self.text.get(..self.from).unwrap_or_default();
        let last = settled.chars().next_back().map_or(0, char::len_utf8);
        let gone = self.from - last;
        self.text.drain(..gone);
        if let Some(trace) = &mut self.trace {
            trace.forget(self.from, gone);
        }
        self.from = last;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::handlers::pii::PiiStrategy;

    const STRATEGIES: [PiiStrategy; 4] =
        [PiiStrategy::Redact, PiiStrategy::Mask, PiiStrategy::Hash, PiiStrategy::Block];

    fn built_in() -> Vec<PiiRule> {
        let kinds = ["email", "credit_card", "ip", "mac_address", "url"];
        kinds.iter().map(|kind| PiiRule::built_in(kind).unwrap()).collect()
    }

    /// Patterns that look around, that prefer short or empty matches, that never end, and plain ones.
    fn custom() -> Vec<PiiRule> {
        let patterns = [
            r"tok_[a-z0-9]{6}",
            r"\bab+\b",
            r"^a.*",
            r"[a-z]+$",
            r"(?m)^\d+$",
            r"a+?b",
            r"a*?",
            r"(?:|a)",
            r"x*",
            r"(?s)a.*b",
            r"(?i)straße|é+",
            r"aba",
            r"ab|abc|abcd",
            r"\B1",
            r"a[ab]*$|b",
            r"[^ ]+@",
            r"(?:a|ab)(?:c|bcd)(?:d*)",
            r"\w+",
            r"\A.",
            r".\z",
        ];
        patterns.iter().map(|pattern| PiiRule::pattern("own", pattern).unwrap()).collect()
    }

    fn function() -> PiiRule {
        PiiRule::function("vowels", |text| {
            text.match_indices(['a', 'e']).map(|(at, c)| at..at + c.len()).collect()
        })
    }

    /// What gets through, cut at these places.
    fn streamed(rules: &[PiiRule], lookback: usize, pieces: &[&str]) -> Result<String> {
        let mut redactor = StreamRedactor::new(rules.to_vec(), lookback);
        let mut out = String::new();
        for piece in pieces {
            out.push_str(&redactor.push(piece)?);
        }
        Ok(out + &redactor.finish()?)
    }

    fn whole(rules: &[PiiRule], text: &str) -> Result<String> {
        rules.iter().try_fold(text.to_owned(), |text, rule| rule.apply(&text))
    }

    fn cut<'a>(text: &'a str, places: &[prop::sample::Index]) -> Vec<&'a str> {
        let mut places: Vec<usize> = places.iter().map(|place| place.index(text.len() + 1)).collect();
        places.retain(|place| text.is_char_boundary(*place));
        places.extend([0, text.len()]);
        places.sort_unstable();
        places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
    }

    /// Texts full of what looks like personal data, whole and broken.
    fn text() -> impl Strategy<Value = String> {
        const FRAGMENTS: &[&str] = &[
            "anna.k@mail.example.org",
            "u@x.io",
            "@",
            "a@b",
            ".com",
            "4111 1111 1111 1111",
            "4111111111111111",
            "1234 ",
            "5500-0000-0000-0004",
            "378282246310005",
            "1",
            "10.0.0.7",
            "999.",
            "1.2.3.",
            "::1",
            "2001:db8::1",
            ":",
            "00:1A:2b:3C:4d:5E",
            "00-1A",
            "https://x.io/p?q=1",
            "www.",
            "example.com/path",
            "http",
            "://",
            "/",
            " ",
            "\n",
            "é",
            "почта",
            "jürgen",
            "@münchen.de",
            "иван@почта.рф",
            "用户",
            "u\u{308}",
            "www.ü",
            "|",
            "-",
            "_",
            "[REDACTED_EMAIL]",
            "tok_abc123",
            "aba",
            "bcd",
            "x",
            "straße",
            "STRASSE",
            "٣",
            "word",
        ];
        let fragment = prop_oneof![
            4 => prop::sample::select(FRAGMENTS).prop_map(str::to_owned),
            1 => "[a-b1 .@é]{0,4}",
        ];
        prop::collection::vec(fragment, 0..14).prop_map(|fragments| fragments.concat())
    }

    fn check(rules: &[PiiRule], lookback: usize, text: &str, pieces: &[&str]) -> Result<(), TestCaseError> {
        match (streamed(rules, lookback, pieces), whole(rules, text)) {
            (Ok(streamed), Ok(whole)) => prop_assert_eq!(streamed, whole, "{:?} of {:?}", rules, pieces),
            (Err(_), Err(_)) => {}
            (streamed, whole) => prop_assert!(false, "{streamed:?} but {whole:?}: {rules:?} of {pieces:?}"),
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn what_is_let_through_is_the_redacted_whole_however_the_text_is_cut(
            text in text(),
            places in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            strategy in prop::sample::select(&STRATEGIES[..]),
            lookback in prop_oneof![Just(0), Just(1), 2..40usize, Just(128)],
        ) {
            let pieces = cut(&text, &places);
            for rule in built_in().into_iter().chain(custom()).chain([function()]) {
                check(&[rule.strategy(strategy)], lookback, &text, &pieces)?;
            }
        }

        #[test]
        fn rules_that_follow_one_another_see_what_was_left(
            text in text(),
            places in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            rules in prop::sample::subsequence([built_in(), custom()].concat(), 2..4).prop_shuffle(),
            strategies in prop::collection::vec(prop::sample::select(&STRATEGIES[..3]), 4),
            lookback in 0..40usize,
        ) {
            let pieces = cut(&text, &places);
            let rules: Vec<_> = rules.into_iter().zip(strategies).map(|(rule, s)| rule.strategy(s)).collect();
            check(&rules, lookback, &text, &pieces)?;
        }
    }

    #[test]
    fn a_text_can_be_cut_anywhere() {
        let text = "Ask anna.k@mail.example.org, card 4111 1111 1111 1111 (10.0.0.7, 2001:db8::1), or \
                    00:1A:2b:3C:4d:5E at https://x.io/p?q=1 or www.y.io. é";
        let cuts: Vec<usize> = (0..=text.len()).filter(|place| text.is_char_boundary(*place)).collect();
        for strategy in &STRATEGIES[..3] {
            let rules: Vec<_> = built_in().into_iter().map(|rule| rule.strategy(*strategy)).collect();
            let expected = whole(&rules, text).unwrap();
            assert!(!expected.contains("x.io") && !expected.contains("4111"), "{expected}");
            for (n, first) in cuts.iter().enumerate() {
                for second in cuts[n..].iter().step_by(7) {
                    let pieces = [&text[..*first], &text[*first..*second], &text[*second..]];
                    assert_eq!(streamed(&rules, 0, &pieces).unwrap(), expected, "{pieces:?}");
                }
            }
            let single: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            assert_eq!(streamed(&rules, 0, &single).unwrap(), expected);
        }
    }

    #[test]
    fn addresses_with_letters_of_any_script_are_hidden_whole_wherever_they_are_cut() {
        let text = "An jürgen@web.de, u@münchen.de, иван@почта.рф и 用户@例子.公司 oder www.müller.de/ü; почтаivan@mail.com";
        let cuts: Vec<usize> = (0..=text.len()).filter(|place| text.is_char_boundary(*place)).collect();
        let single: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let expected = "An [REDACTED_EMAIL], [REDACTED_EMAIL], [REDACTED_EMAIL] и [REDACTED_EMAIL] oder \
                        [REDACTED_URL] почта[REDACTED_EMAIL]";
        for lookback in [0, 4, 128] {
            assert_eq!(streamed(&built_in(), lookback, &single).unwrap(), expected);
            for cut in &cuts {
                let pieces = [&text[..*cut], &text[*cut..]];
                assert_eq!(streamed(&built_in(), lookback, &pieces).unwrap(), expected, "{pieces:?}");
            }
        }
        for strategy in STRATEGIES {
            let rules: Vec<_> = built_in().into_iter().map(|rule| rule.strategy(strategy)).collect();
            match (streamed(&rules, 0, &single), whole(&rules, text)) {
                (Ok(streamed), Ok(whole)) => assert_eq!(streamed, whole),
                (streamed, whole) => assert!(streamed.is_err() && whole.is_err()),
            }
        }
    }

    #[test]
    fn nothing_of_what_is_blocked_is_let_through() {
        let text = "Dear anna.k@mail.example.org, hello";
        for lookback in [0, 4, 128] {
            let mut redactor = PiiRule::email().strategy(PiiStrategy::Block).stream(lookback);
            let mut out = String::new();
            let mut failed = None;
            for (place, c) in text.char_indices() {
                match redactor.push(c.encode_utf8(&mut [0; 4])) {
                    Ok(piece) => out.push_str(&piece),
                    Err(error) => {
                        failed = Some((place, error.kind()));
                        break;
                    }
                }
            }
            // It is an address as soon as the label behind the dot has two letters.
            assert_eq!(failed, Some((text.find("xample").unwrap(), umbel_core::ErrorKind::Blocked)));
            assert!("Dear ".starts_with(&out), "{out}");
        }
    }

    #[test]
    fn what_cannot_become_a_match_does_not_wait() {
        let mut redactor = PiiRule::email().stream(0);
        assert_eq!(redactor.push("Hello, wor").unwrap(), "Hello, ");
        assert_eq!(redactor.push("ld and ann@").unwrap(), "world and ");
        assert_eq!(redactor.push("x.or").unwrap(), "[REDACTED_EMAIL]");
        assert_eq!(redactor.push("g now ").unwrap(), " now ");
        assert_eq!(redactor.finish().unwrap(), "");
    }

    #[test]
    fn a_marker_waits_until_its_match_is_certain() {
        let mut redactor = PiiRule::pattern("own", r"a[ab]*$|b").unwrap().stream(0);
        assert_eq!(redactor.push("ab").unwrap(), "");
        assert_eq!(redactor.push(" ").unwrap(), "a[REDACTED_OWN] ");
        assert_eq!(redactor.push("ab").unwrap(), "");
        assert_eq!(redactor.finish().unwrap(), "[REDACTED_OWN]");
    }

    #[test]
    fn a_match_may_be_longer_than_the_lookback() {
        let key = format!("tok_{}", "a".repeat(300));
        let rule = PiiRule::pattern("token", "tok_[a-z]{300}").unwrap();
        let text = format!("key {key} end");
        let pieces: Vec<&str> = text.split_inclusive('a').collect();
        assert_eq!(streamed(&[rule], 4, &pieces).unwrap(), "key [REDACTED_TOKEN] end");
    }

    #[test]
    fn a_long_text_costs_what_it_is_long() {
        let mut redactor = PiiRule::pattern("rest", "(?s)BEGIN.*").unwrap().stream(128);
        assert_eq!(redactor.push("BEGIN").unwrap(), "");
        for _ in 0..50_000 {
            redactor.push("word ").unwrap();
        }
        let many = "a@b.org ".repeat(10_000);
        let mut other = PiiRule::email().stream(0);
        assert_eq!(other.push(&many).unwrap().len(), "[REDACTED_EMAIL] ".len() * 10_000);
        assert_eq!(redactor.finish().unwrap(), "[REDACTED_REST]");
    }
}
