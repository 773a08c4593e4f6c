//! What the script understands of a sentence: not much.

/// Cities that are known without a word such as `in` before them.
const CITIES: [&str; 8] = ["berlin", "cairo", "lisbon", "london", "oslo", "paris", "rome", "tokyo"];

/// How people call currencies.
const CURRENCIES: [(&str, &[&str]); 5] = [
    ("EUR", &["eur", "euro", "euros"]),
    ("USD", &["usd", "dollar", "dollars"]),
    ("GBP", &["gbp", "pound", "pounds"]),
    ("JPY", &["jpy", "yen"]),
    ("CHF", &["chf", "franc", "francs"]),
];

/// Words by which a topic is known. The first topic that fits counts.
const TOPICS: [(Topic, &[&str]); 10] = [
    (Topic::Trips, &["booked", "trips"]),
    (Topic::Booking, &["book", "nights"]),
    (Topic::Weather, &["weather", "rain", "sunny", "warm", "cold", "forecast"]),
    (Topic::Money, &["convert", "exchange"]),
    (Topic::Packing, &["pack", "packing", "list"]),
    (Topic::Day, &["plan", "day"]),
    (Topic::Food, &["food", "eat", "restaurant", "hungry", "lunch", "dinner", "dish"]),
    (Topic::Idea, &["where", "suggest", "recommend", "idea", "ideas"]),
    (Topic::Back, &["back", "guide", "thanks", "bye"]),
    (Topic::Hello, &["hello", "hi", "hey", "morning"]),
];

/// What a sentence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    Weather,
    Money,
    Packing,
    Booking,
    Trips,
    Day,
    Food,
    Idea,
    Back,
    Hello,
    /// No word is known.
    Unknown,
}

pub(super) fn topic(text: &str) -> Topic {
    let tokens = tokens(text);
    let has = |words: &[&str]| tokens.iter().any(|token| words.contains(&token.to_lowercase().as_str()));
    if number(text).is_some() && currencies(text).is_some() {
        return Topic::Money;
    }
    TOPICS.iter().find(|(_, words)| has(words)).map_or(Topic::Unknown, |(topic, _)| *topic)
}

/// The places that a sentence names: what follows its last `in`, `to` and the like, else cities that are known.
pub(super) fn places(text: &str) -> Vec<String> {
    let (mut found, mut current, mut open) = (Vec::new(), Vec::new(), false);
    for token in tokens(text) {
        match token.to_lowercase().as_str() {
            "in" | "to" | "at" | "for" | "of" => {
                (open, current) = (true, vec![String::new()]);
            }
            "today" | "tomorrow" | "please" | "now" | "on" | "with" | "by" | "next" => open = false,
            "the" | "a" | "an" => {}
            word if word.starts_with(|c: char| c.is_ascii_digit()) => open = false,
            "and" | "or" | "," if open => current.push(String::new()),
            word if open => {
                if let Some(name) = current.last_mut() {
                    if !name.is_empty() {
                        name.push(' ');
                    }
                    name.push_str(&capital(word));
                }
            }
            _ => {}
        }
        if current.iter().any(|name| !name.is_empty()) {
            found.clone_from(&current);
        }
    }
    found.retain(|name| !name.is_empty());
    if found.is_empty() {
        let known =
            tokens(text).into_iter().map(str::to_lowercase).filter(|word| CITIES.contains(&word.as_str()));
        found = known.map(|word| capital(&word)).collect();
    }
    found
}

/// The things that follow the word `pack`.
pub(super) fn things(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let rest = tokens.iter().skip_while(|token| !token.eq_ignore_ascii_case("pack")).skip(1);
    let mut things = vec![String::new()];
    for token in rest {
        match token.to_lowercase().as_str() {
            "and" | "," => things.push(String::new()),
            "a" | "an" | "the" | "my" | "some" | "please" => {}
            word => {
                if let Some(thing) = things.last_mut() {
                    if !thing.is_empty() {
                        thing.push(' ');
                    }
                    thing.push_str(word);
                }
            }
        }
    }
    things.retain(|thing| !thing.is_empty());
    things
}

/// The first number.
pub(super) fn number(text: &str) -> Option<f64> {
    tokens(text).into_iter().find_map(|token| token.parse().ok()).filter(|number: &f64| number.is_finite())
}

/// The currencies to convert between: the first is known, the second may be anything.
pub(super) fn currencies(text: &str) -> Option<(String, String)> {
    let known = |token: &str| {
        let token = token.to_lowercase();
        CURRENCIES
            .iter()
            .find(|(_, names)| names.contains(&token.as_str()))
            .map(|(code, _)| (*code).to_owned())
    };
    let tokens = tokens(text);
    let mut rest = tokens.iter().skip_while(|token| known(token).is_none());
    let from = known(rest.next()?)?;
    let to = rest.find(|token| !["to", "in", "into"].contains(&token.to_lowercase().as_str()))?;
    Some((from, known(to).unwrap_or_else(|| to.to_uppercase())))
}

/// Words, numbers and commas.
fn tokens(text: &str) -> Vec<&str> {
    let ends = |c: char| c.is_whitespace() || "?!;:\"`()".contains(c);
    let mut tokens = Vec::new();
    for word in text.split(ends).map(|word| word.trim_matches(['.', '\''])).filter(|word| !word.is_empty()) {
        match word.strip_suffix(',') {
            Some(word) => tokens.extend([word, ","]),
            None => tokens.push(word),
        }
    }
    tokens
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_a_small_word_or_are_known() {
        for (text, expected) in [
            ("weather in paris and New York?", &["Paris", "New York"][..]),
            ("Is it warm in Rome, Oslo or Cairo today", &["Rome", "Oslo", "Cairo"]),
            ("I want to book a trip to Rome for 4 nights", &["Rome"]),
            ("book 3 nights in Lisbon", &["Lisbon"]),
            ("Tokyo weather", &["Tokyo"]),
            ("what is the weather like?", &[]),
        ] {
            assert_eq!(places(text), expected, "{text}");
        }
    }

    #[test]
    fn topics_are_told_apart() {
        for (text, expected) in [
            ("what are my trips?", Topic::Trips),
            ("Book a trip to Rome", Topic::Booking),
            ("100 euros in yen", Topic::Money),
            ("what is on my packing list", Topic::Packing),
            ("Hi!", Topic::Hello),
            ("Rome", Topic::Unknown),
        ] {
            assert_eq!(topic(text), expected, "{text}");
        }
    }

    #[test]
    fn things_and_money_are_found() {
        assert_eq!(
            things("Please pack an umbrella, a rain coat and my map"),
            ["umbrella", "rain coat", "map"]
        );
        assert!(things("what is on my packing list?").is_empty());
        assert_eq!(currencies("convert 100 euros to xyz"), Some(("EUR".to_owned(), "XYZ".to_owned())));
        assert_eq!(number("convert 12.5 eur"), Some(12.5));
    }
}
