//! The stem of an English word, by Porter's rules with the additions that the Natural Language Toolkit made to them, so that
//! scores are those that other kits give.

/// A rule: an ending, and what takes its place if the stem before it allows that.
type Rule = (&'static str, &'static str);

/// Words that do not follow the rules.
const IRREGULAR: [(&str, &str); 15] = [
    ("sky", "sky"),
    ("skies", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("innings", "inning"),
    ("inning", "inning"),
    ("outings", "outing"),
    ("outing", "outing"),
    ("cannings", "canning"),
    ("canning", "canning"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];

const STEP_2: [Rule; 21] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
];

const STEP_3: [Rule; 7] = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
];

const STEP_4: [&str; 19] = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism",
    "ate", "iti", "ous", "ive", "ize",
];

/// The stem of a word in lower case.
pub(super) fn stem(word: &str) -> String {
    if let Some((_, stem)) = IRREGULAR.iter().find(|(irregular, _)| *irregular == word) {
        return (*stem).to_owned();
    }
    if word.len() <= 2 || !word.is_ascii() {
        return word.to_owned();
    }
    let word = step_1c(step_1b(step_1a(word)));
    step_5(step_4(step_3(step_2(word))))
}

/// Plurals.
fn step_1a(word: &str) -> String {
    match word {
        _ if word.ends_with("ies") && word.len() == 4 => put(word, "ies", "ie"),
        _ if word.ends_with("sses") => put(word, "sses", "ss"),
        _ if word.ends_with("ies") => put(word, "ies", "i"),
        _ if word.ends_with("ss") => word.to_owned(),
        _ => put(word, "s", ""),
    }
}

/// The past, and what goes on.
fn step_1b(word: String) -> String {
    if word.ends_with("ied") {
        return put(&word, "ied", if word.len() == 4 { "ie" } else { "i" });
    }
    if let Some(stem) = word.strip_suffix("eed") {
        return if measure(stem) > 0 { format!("{stem}ee") } else { word };
    }
    let cut = ["ed", "ing"].iter().find_map(|end| word.strip_suffix(end).filter(|stem| has_vowel(stem)));
    let Some(stem) = cut else { return word };
    for (end, full) in [("at", "ate"), ("bl", "ble"), ("iz", "ize")] {
        if stem.ends_with(end) {
            return put(stem, end, full);
        }
    }
    if ends_double(stem) {
        let keeps = stem.ends_with(['l', 's', 'z']);
        return if keeps { stem.to_owned() } else { stem.get(..stem.len() - 1).unwrap_or(stem).to_owned() };
    }
    if measure(stem) == 1 && ends_cvc(stem) { format!("{stem}e") } else { stem.to_owned() }
}

fn step_1c(word: String) -> String {
    match word.strip_suffix('y') {
        Some(stem) if stem.len() > 1 && is_consonant(stem, stem.len() - 1) => format!("{stem}i"),
        _ => word,
    }
}

fn step_2(word: String) -> String {
    if let Some(stem) = word.strip_suffix("alli").filter(|stem| measure(stem) > 0) {
        return step_2(format!("{stem}al"));
    }
    if let Some(rule) = STEP_2.iter().find(|(end, _)| word.ends_with(end)) {
        return apply(&word, *rule);
    }
    match word.strip_suffix("logi") {
        Some(stem) if measure(&format!("{stem}l")) > 0 => format!("{stem}log"),
        _ => word,
    }
}

fn step_3(word: String) -> String {
    match STEP_3.iter().find(|(end, _)| word.ends_with(end)) {
        Some(rule) => apply(&word, *rule),
        None => word,
    }
}

fn step_4(word: String) -> String {
    let Some((end, stem)) = STEP_4.iter().find_map(|end| Some((*end, word.strip_suffix(end)?))) else {
        return word;
    };
    let allowed = end != "ion" || stem.ends_with(['s', 't']);
    if measure(stem) > 1 && allowed { stem.to_owned() } else { word }
}

/// A last `e`, and one `l` of two.
fn step_5(word: String) -> String {
    let word = match word.strip_suffix('e') {
        Some(stem) if measure(stem) > 1 || (measure(stem) == 1 && !ends_cvc(stem)) => stem.to_owned(),
        _ => word,
    };
    match word.strip_suffix('l') {
        Some(stem) if stem.ends_with('l') && measure(stem) > 1 => stem.to_owned(),
        _ => word,
    }
}

/// The word with its end replaced, if it has one.
fn put(word: &str, end: &str, by: &str) -> String {
    word.strip_suffix(end).map_or_else(|| word.to_owned(), |stem| format!("{stem}{by}"))
}

/// The same if there is something before the end.
fn apply(word: &str, (end, by): Rule) -> String {
    match word.strip_suffix(end) {
        Some(stem) if measure(stem) > 0 => format!("{stem}{by}"),
        _ => word.to_owned(),
    }
}

fn is_consonant(word: &str, at: usize) -> bool {
    match word.as_bytes().get(at) {
        Some(b'a' | b'e' | b'i' | b'o' | b'u') | None => false,
        Some(b'y') => at == 0 || !is_consonant(word, at - 1),
        Some(_) => true,
    }
}

fn has_vowel(word: &str) -> bool {
    (0..word.len()).any(|at| !is_consonant(word, at))
}

/// How often vowels are followed by consonants.
fn measure(word: &str) -> usize {
    let follows = |at: &usize| !is_consonant(word, *at) && is_consonant(word, at + 1);
    (0..word.len()).filter(follows).count()
}

fn ends_double(word: &str) -> bool {
    let bytes = word.as_bytes();
    let (Some(last), Some(before)) = (bytes.last(), bytes.iter().rev().nth(1)) else { return false };
    last == before && is_consonant(word, word.len() - 1)
}

/// Whether it ends with a consonant, a vowel and a consonant that is none of w, x and y; or is a vowel and a consonant.
fn ends_cvc(word: &str) -> bool {
    match word.len() {
        0 | 1 => false,
        2 => !is_consonant(word, 0) && is_consonant(word, 1),
        len => {
            is_consonant(word, len - 3)
                && !is_consonant(word, len - 2)
                && is_consonant(word, len - 1)
                && !word.ends_with(['w', 'x', 'y'])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn words_are_cut_as_porters_rules_say() {
        for (word, expected) in [
            ("caresses", "caress"),
            ("ponies", "poni"),
            ("ties", "tie"),
            ("cats", "cat"),
            ("caress", "caress"),
            ("feed", "feed"),
            ("agreed", "agre"),
            ("plastered", "plaster"),
            ("bled", "bled"),
            ("motoring", "motor"),
            ("sing", "sing"),
            ("conflated", "conflat"),
            ("troubled", "troubl"),
            ("sized", "size"),
            ("hopping", "hop"),
            ("tanned", "tan"),
            ("falling", "fall"),
            ("hissing", "hiss"),
            ("failing", "fail"),
            ("filing", "file"),
            ("happy", "happi"),
            ("enjoy", "enjoy"),
            ("relational", "relat"),
            ("conditional", "condit"),
            ("rational", "ration"),
            ("digitizer", "digit"),
            ("radically", "radic"),
            ("vietnamization", "vietnam"),
            ("hopefulness", "hope"),
            ("sensibility", "sensibl"),
            ("triplicate", "triplic"),
            ("goodness", "good"),
            ("revival", "reviv"),
            ("replacement", "replac"),
            ("adoption", "adopt"),
            ("effective", "effect"),
            ("probate", "probat"),
            ("rate", "rate"),
            ("cease", "ceas"),
            ("controlling", "control"),
            ("rolling", "roll"),
            ("skies", "sky"),
            ("news", "news"),
            ("dies", "die"),
            ("running", "run"),
            ("cities", "citi"),
            ("city", "citi"),
        ] {
            assert_eq!(stem(word), expected, "{word}");
        }
    }
}
