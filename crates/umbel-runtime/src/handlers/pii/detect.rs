//! Finding personal data in a text.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use regex_automata::nfa::thompson::{NFA, WhichCaptures};
use umbel_core::{BoxError, Error, ErrorKind, Result};

/// A piece of personal data in a text. Offsets count characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PiiMatch {
    /// Where it begins.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// What stands there.
    pub value: String,
}

/// Finds personal data: gives the places in bytes.
pub(super) type DetectFn = dyn Fn(&str) -> Vec<Range<usize>> + Send + Sync;

/// How personal data are found.
#[derive(Clone)]
pub(super) enum Detector {
    Pattern(Arc<Pattern>),
    Function(Arc<DetectFn>),
}

impl Detector {
    /// All places in a text, in order, none of them empty or inside another.
    pub(super) fn find_all(&self, text: &str) -> Vec<Range<usize>> {
        match self {
            Self::Pattern(pattern) => pattern.find_all(text, 0),
            Self::Function(detect) => in_order(text, detect(text)),
        }
    }
}

/// Makes what a function gave usable: places that are none are left out, those that overlap are one.
fn in_order(text: &str, mut found: Vec<Range<usize>>) -> Vec<Range<usize>> {
    found.retain(|place| !place.is_empty() && text.get(place.clone()).is_some());
    found.sort_by_key(|place| place.start);
    let mut places: Vec<Range<usize>> = Vec::with_capacity(found.len());
    for place in found {
        match places.last_mut() {
            Some(last) if place.start < last.end => last.end = last.end.max(place.end),
            _ => places.push(place),
        }
    }
    places
}

/// The places with offsets in characters.
pub(super) fn in_chars(text: &str, places: &[Range<usize>]) -> Vec<PiiMatch> {
    let (mut chars, mut bytes) = (0, 0);
    let mut count_to = |place: usize| {
        chars += text.get(bytes..place).map_or(0, |between| between.chars().count());
        bytes = place;
        chars
    };
    let matched = |place: &Range<usize>| PiiMatch {
        start: count_to(place.start),
        end: count_to(place.end),
        value: text.get(place.clone()).unwrap_or_default().to_owned(),
    };
    places.iter().map(matched).collect()
}

/// A regular expression, and what a match of it must be besides.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// The same expression, to see what of a text that is still coming may become a match.
    pub(super) nfa: NFA,
    check: Check,
}

#[derive(Debug)]
enum Check {
    /// Any match counts.
    No,
    /// It counts if this says so of its text.
    Text(fn(&str) -> bool),
    /// It counts if no match of this begins further inside it.
    Undivided(Regex),
}

/// A match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) place: Range<usize>,
    /// The last place that has to do with it: it is sure once nothing that begins there or before can change any more.
    pub(super) depends_on: usize,
}

impl Pattern {
    pub(super) fn new(pattern: &str) -> Result<Self> {
        let failed = |error: BoxError| {
            let message = format!("the pattern `{pattern}` cannot be used: {error}");
            Error::new(ErrorKind::Build, message).with_source(error)
        };
        let regex = Regex::new(pattern).map_err(|error| failed(error.into()))?;
        let config = NFA::config().which_captures(WhichCaptures::None);
        let nfa = NFA::compiler().configure(config).build(pattern).map_err(|error| failed(error.into()))?;
        Ok(Self { regex, nfa, check: Check::No })
    }

    /// Whether there is a match wherever the expression has one, be it another.
    pub(super) fn keeps_matches(&self) -> bool {
        matches!(self.check, Check::No | Check::Undivided(_))
    }

    /// The first match from `from` on. Empty ones do not count: there is nothing to hide.
    pub(super) fn find_at(&self, text: &str, from: usize) -> Option<Found> {
        let mut from = from;
        loop {
            let place = self.regex.find_at(text, from)?.range();
            let alone = Some(Found { depends_on: place.start, place: place.clone() });
            from = match &self.check {
                Check::No if !place.is_empty() => return alone,
                Check::Text(check) if passes(text, &place, *check) => return alone,
                Check::Text(check) => match self.find_inside(text, &place, *check) {
                    Some(place) => return Some(Found { depends_on: place.end - 1, place }),
                    None => place.end,
                },
                Check::Undivided(divides) => match divides.find_at(text, place.start) {
                    Some(found) if found.start() == place.start => return alone,
                    Some(found) if found.start() < place.end => behind(text, place.start)?,
                    _ => return Some(Found { depends_on: place.end - 1, place }),
                },
                Check::No => behind(text, place.start)?,
            };
        }
    }

    /// A match that passes the check and begins inside one that failed it, unless it reaches into the next that passes.
    fn find_inside(
        &self,
        text: &str,
        failed: &Range<usize>,
        check: fn(&str) -> bool,
    ) -> Option<Range<usize>> {
        let begins_before = |from: usize, end: usize| {
            self.regex.find_at(text, from).map(|found| found.range()).filter(|place| place.start < end)
        };
        let mut inner = begins_before(behind(text, failed.start)?, failed.end)?;
        while !passes(text, &inner, check) {
            inner = begins_before(behind(text, inner.start)?, failed.end)?;
        }
        let mut next = begins_before(failed.end, inner.end);
        while let Some(place) = next {
            if passes(text, &place, check) {
                return None;
            }
            next = begins_before(place.end, inner.end);
        }
        Some(inner)
    }

    /// Where a text can be cut that is settled up to `place` and has no match before it: not inside one that failed its
    /// check, since what begins in there counts less than what begins behind it.
    pub(super) fn cut(&self, text: &str, from: usize, place: usize) -> usize {
        let Check::Text(_) = self.check else { return place };
        let mut from = from;
        while let Some(failed) = self.regex.find_at(text, from).filter(|failed| failed.start() < place) {
            if failed.end() > place {
                return failed.start();
            }
            from = failed.end();
        }
        place
    }

    /// The places of all matches from `from` on.
    pub(super) fn find_all(&self, text: &str, from: usize) -> Vec<Range<usize>> {
        let next = |found: &Found| self.find_at(text, found.place.end);
        std::iter::successors(self.find_at(text, from), next).map(|found| found.place).collect()
    }
}

fn passes(text: &str, place: &Range<usize>, check: fn(&str) -> bool) -> bool {
    text.get(place.clone()).is_some_and(check)
}

/// The place behind the character at `place`.
fn behind(text: &str, place: usize) -> Option<usize> {
    Some(place + text.get(place..)?.chars().next()?.len_utf8())
}

/// Nothing that could be part of the word stands before. Only ASCII counts: letters of another script, with no space
/// between, do not hide what comes behind them.
const START: &str = r"(?-u:\b{start-half})";
/// The same for what stands behind.
const END: &str = r"(?-u:\b{end-half})";

/// What the labels of a host name consist of, besides hyphens: letters, marks, joiners and digits of any script.
const HOST: &str = r"\p{L}\p{M}\p{Nd}\u{B7}\u{200C}\u{200D}";

/// Letters of the Latin script, with the marks and joiners that belong to letters of any script.
const LATIN: &str = r"\p{Latin}\p{M}";
/// Letters of all other scripts, with the same.
const OTHER: &str = r"[\p{L}--\p{Latin}]\p{M}\u{200C}\u{200D}";

/// Finds email addresses, with letters of any script. What follows the last label cannot make an address none.
///
/// In a name letters of other scripts and Latin ones do not touch: where they do, a word stands before an address without
/// a space. The last label is of Latin letters without marks, or has others at its beginning or inside.
pub(super) fn email() -> Detector {
    static EMAIL: LazyLock<Option<Arc<Pattern>>> = LazyLock::new(|| {
        let letters = format!("(?:[{LATIN}]+|[{OTHER}]+)");
        // The first character is a letter, a digit or `_`; the leftmost match begins as early as there is one.
        let name = format!(
            r"(?:{letters}(?:[\p{{Nd}}._%+-]+{letters})*[\p{{Nd}}._%+-]*|[\p{{Nd}}_][\p{{Nd}}._%+-]*(?:{letters}[\p{{Nd}}._%+-]+)*{letters}?)"
        );
        let marked = r"[A-Za-z]+(?:[\p{Latin}\p{M}--A-Za-z]+[A-Za-z]+)+";
        let other = r"[\p{L}--A-Za-z][\p{L}\p{M}\u{200C}\u{200D}]+";
        let last_label = format!(r"(?:{marked}|{other}|[A-Za-z|]{{2,}}(?-u:\b)|[A-Za-z|]+[A-Za-z])");
        built_in(&format!(r"{name}@[{HOST}.-]+\.{last_label}"), Check::No)
    });
    shared(&EMAIL)
}

/// Finds the numbers of cards: 16 digits, or 15 or 14 that begin as such cards do, and a check digit that fits.
pub(super) fn credit_card() -> Detector {
    static CARD: LazyLock<Option<Arc<Pattern>>> = LazyLock::new(|| {
        let sixteen = r"\d{4}[\s-]?\d{4}[\s-]?\d{4}[\s-]?\d{4}";
        let fifteen = r"3[47]\d{2}[\s-]?\d{6}[\s-]?\d{5}";
        let fourteen = r"3(?:0[0-5]|[689]\d)\d[\s-]?\d{6}[\s-]?\d{4}";
        built_in(&format!("{START}(?:{sixteen}|{fifteen}|{fourteen}){END}"), Check::Text(passes_luhn))
    });
    shared(&CARD)
}

/// Finds IP addresses, of version 4 and of version 6.
pub(super) fn ip() -> Detector {
    static IP: LazyLock<Option<Arc<Pattern>>> = LazyLock::new(|| {
        let four = r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}";
        let group = "[0-9A-Fa-f]{1,4}";
        let groups = format!("{group}(?::{group}){{0,6}}");
        let whole = format!("(?:{group}:){{6}}(?:{four}|{group}:{group})");
        let shortened = format!("(?:{groups})?::(?:(?:{group}:){{0,5}}{four}|{groups})?");
        let is_address =
            |text: &str| text.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified() || ip.is_ipv4());
        built_in(&format!("{START}(?:{whole}|{shortened}|{four}){END}"), Check::Text(is_address))
    });
    shared(&IP)
}

/// Finds the addresses of network cards.
pub(super) fn mac_address() -> Detector {
    static MAC: LazyLock<Option<Arc<Pattern>>> = LazyLock::new(|| {
        built_in(&format!("{START}(?:[0-9A-Fa-f]{{2}}[:-]){{5}}[0-9A-Fa-f]{{2}}{END}"), Check::No)
    });
    shared(&MAC)
}

/// Finds URLs: with a scheme, or else with `www` or a path, and with letters of any script. Where one with a scheme begins inside another, only that one
/// counts.
pub(super) fn url() -> Detector {
    static URL: LazyLock<Option<Arc<Pattern>>> = LazyLock::new(|| {
        let not = r#"\s<>"{}|\\^`\[\]"#;
        let with_scheme = format!("https?://[^{not}/?#][^{not}]*");
        let label = format!("[{HOST}](?:[{HOST}-]*[{HOST}])?");
        let bare = format!(r"www(?:\.{label})+(?:/\S*)?|{label}(?:\.{label})+/\S*");
        let check = Regex::new(&with_scheme).map_or(Check::No, Check::Undivided);
        built_in(&format!("{with_scheme}|{START}(?:{bare})"), check)
    });
    shared(&URL)
}

fn built_in(pattern: &str, check: Check) -> Option<Arc<Pattern>> {
    Pattern::new(pattern).ok().map(|pattern| Arc::new(Pattern { check, ..pattern }))
}

/// A pattern of our own, which always compiles: were it otherwise, nothing would get through.
fn shared(pattern: &LazyLock<Option<Arc<Pattern>>>) -> Detector {
    match &**pattern {
        Some(pattern) => Detector::Pattern(pattern.clone()),
        None => Detector::Function(Arc::new(|text| std::iter::once(0..text.len()).collect())),
    }
}

/// Whether the last digit is the check digit of the others.
fn passes_luhn(number: &str) -> bool {
    let mut digits: Vec<u32> = number.chars().filter_map(digit).collect();
    digits.reverse();
    let weigh = |(place, digit): (usize, &u32)| match digit * (1 + place as u32 % 2) {
        large if large > 9 => large - 9,
        small => small,
    };
    digits.iter().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

/// The value of a decimal digit of any script. Digits of a script stand in a row, from zero to nine.
fn digit(c: char) -> Option<u32> {
    if c.is_ascii() || !c.is_numeric() {
        return c.to_digit(10);
    }
    let before = (0..u32::from(c)).rev().map(char::from_u32);
    let row = before.take_while(|before| before.is_some_and(char::is_numeric)).count();
    u32::try_from(row % 10).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(detector: &Detector, text: &str) -> Vec<String> {
        in_chars(text, &detector.find_all(text)).into_iter().map(|found| found.value).collect()
    }

    #[test]
    fn every_built_in_pattern_compiles() {
        for detector in [email(), credit_card(), ip(), mac_address(), url()] {
            assert!(matches!(detector, Detector::Pattern(_)));
        }
    }

    #[test]
    fn letters_of_another_script_hide_nothing() {
        assert_eq!(found(&email(), "почтаivan@mail.com u@site.comé"), ["ivan@mail.com", "u@site.com"]);
        assert_eq!(found(&ip(), "адрес10.0.0.7"), ["10.0.0.7"]);
        assert_eq!(found(&credit_card(), "№4111111111111111号"), ["4111111111111111"]);
        assert_eq!(found(&url(), "см.example.org/x"), ["см.example.org/x"], "it may be one name");
    }

    #[test]
    fn addresses_with_letters_of_any_script_are_found_whole() {
        let addresses = [
            "jürgen@web.de",
            "u@münchen.de",
            "ju\u{308}rgen@mu\u{308}nchen.de",
            "иван@почта.рф",
            "иван.петров-2@mail.example.org",
            "2иван@xn--80a1acny.рф",
            "ivan.иванов@mail.ru",
            "иван_ivanov@mail.ru",
            "用户@例子.公司",
            "用户1@example.com",
            "उपयोगकर्ता@उदाहरण.भारत",
            "χρήστης@παράδειγμα.ελ",
            "משתמש@דוגמה.ישראל",
            "کاربر\u{200C}ها@مثال.ایران",
            "ñandú@correo.es",
            "a@b.vermögensberater",
            "łódź+tag@poczta.pl",
            "ａｂ@ｃｄ.com",
        ];
        for address in addresses {
            for text in [address.to_owned(), format!("an {address}, <{address}>; ({address})")] {
                let found = found(&email(), &text);
                assert!(
                    !found.is_empty() && found.iter().all(|found| found == address),
                    "{address}: {found:?}"
                );
                assert_eq!(found.len(), text.matches(address).count(), "{text}");
            }
        }
        assert_eq!(found(&email(), "请联系user@example.com谢谢"), ["user@example.com"]);
        assert!(found(&email(), "ü@ @münchen.de жук@ §@x.de ü@x").is_empty());
    }

    #[test]
    fn hosts_with_letters_of_any_script_are_found_whole() {
        for host in ["münchen.de", "почта.рф", "例子.公司", "mu\u{308}nchen.de", "उदाहरण.भारत", "a-ü.de"]
        {
            for address in [
                format!("https://{host}/pfad?q=ü"),
                format!("http://{host}"),
                format!("www.{host}"),
                format!("www.{host}/x"),
                format!("{host}/straße"),
            ] {
                assert_eq!(found(&url(), &format!("see {address} now")), [address.as_str()]);
            }
        }
    }

    #[test]
    fn an_address_ends_where_its_last_label_ends() {
        assert_eq!(found(&email(), "|a@b.com| u@x.org2 c@d.ab|1"), ["a@b.com", "u@x.org", "c@d.ab|"]);
        assert_eq!(found(&email(), "+x@y.zz .q@r.st %@u.vw"), ["x@y.zz", "q@r.st"]);
    }

    #[test]
    fn cards_of_14_and_15_digits_are_found_if_they_begin_as_such_cards_do() {
        let text = "378282246310005, 3782 822463 10005, 30569309025904, 3056-930902-5904, 123456789012347";
        let cards = ["378282246310005", "3782 822463 10005", "30569309025904", "3056-930902-5904"];
        assert_eq!(found(&credit_card(), text), cards);
    }

    #[test]
    fn a_number_that_fails_its_check_does_not_hide_the_next() {
        assert_eq!(found(&credit_card(), "1234 4111 1111 1111 1111"), ["4111 1111 1111 1111"]);
        assert_eq!(found(&ip(), "999.10.0.0.7"), ["10.0.0.7"]);
        let cut_short = "1234 5678 1234 5678 5500-0000-0000-0004";
        assert!(passes_luhn("5678 1234 5678 5500"), "it begins earlier");
        assert_eq!(found(&credit_card(), cut_short), ["5500-0000-0000-0004"]);
    }

    #[test]
    fn digits_of_any_script_are_digits() {
        assert_eq!("0٣９𝟘𝟡𝟙".chars().filter_map(digit).collect::<Vec<_>>(), [0, 3, 9, 0, 9, 1]);
        assert_eq!(
            found(&credit_card(), "カード ４１１１ １１１１ １１１１ １１１１"),
            ["４１１１ １１１１ １１１１ １１１１"]
        );
        assert!(found(&credit_card(), "４１１１ １１１１ １１１１ １１１２").is_empty());
    }

    #[test]
    fn addresses_of_version_6_are_found() {
        let text =
            "2001:db8::1, (::1) fe80::1%eth0 1:2:3:4:5:6:7:8. ::ffff:10.0.0.7 2001:db8::: and 64:ff9b::";
        let addresses = ["2001:db8::1", "::1", "fe80::1", "1:2:3:4:5:6:7:8", "::ffff:10.0.0.7"];
        assert_eq!(found(&ip(), text), [&addresses[..], &["2001:db8::", "64:ff9b::"]].concat());
        assert!(found(&ip(), "12:30:45 std::vec ::new() a:b :: 00:11:22:33:44:55").is_empty());
    }

    #[test]
    fn a_url_with_a_scheme_counts_before_one_without() {
        assert_eq!(
            found(&url(), "x.io/r?u=https://y.io/p www.z.iohttps://u:p@h.io"),
            ["https://y.io/p", "https://u:p@h.io"]
        );
        assert_eq!(
            found(&url(), "https://x.io/r?u=https://y.io/p x.io/http://"),
            ["https://x.io/r?u=https://y.io/p", "x.io/http://"]
        );
        assert_eq!(found(&url(), "https://x.io/a|b.c/d https:///z"), ["https://x.io/a", "b.c/d"]);
    }

    #[test]
    fn what_a_function_gives_is_put_in_order() {
        let detect = |_: &str| vec![4..6, 0..2, 1..3, 5..5, 7..99, 8..9];
        let detector = Detector::Function(Arc::new(detect));
        assert_eq!(detector.find_all("abcdefgé"), [0..3, 4..6]);
    }

    #[test]
    fn a_pattern_that_cannot_be_read_says_so() {
        let error = Pattern::new("(").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Build);
        assert!(error.message().contains("`(`"), "{error}");
    }
}
