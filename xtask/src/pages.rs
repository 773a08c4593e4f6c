//! Whether the pages hold together: links lead somewhere, and every page can be found.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::test::{Verdict, root};

/// Where a reader begins. Each lists all pages of `docs/`: the first for people, the second for coding assistants.
const INDEXES: [&str; 2] = ["README.md", "llms.txt"];

/// Pages outside `docs/` and `examples/`.
const OTHERS: [&str; 7] =
    ["README.md", "llms.txt", "AGENTS.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", SECURITY];

/// The page that names a test for each threat.
const SECURITY: &str = "SECURITY.md";

pub(crate) fn check() -> Verdict {
    let root = root();
    let mut names: Vec<PathBuf> = OTHERS.iter().map(PathBuf::from).collect();
    for folder in ["docs", "examples"] {
        markdown_below(&root, Path::new(folder), &mut names);
    }
    let mut pages = BTreeMap::new();
    let mut problems = Vec::new();
    for name in names {
        match std::fs::read_to_string(root.join(&name)) {
            Ok(text) => {
                pages.insert(name, text);
            }
            Err(error) => problems.push(format!("{} cannot be read: {error}", name.display())),
        }
    }
    problems.extend(dead_links(&pages, &|path| root.join(path).exists()));
    for index in INDEXES {
        problems.extend(unlisted(index, &pages));
    }
    let mut sources = String::new();
    for folder in ["crates", "xtask"] {
        source_below(&root.join(folder), &mut sources);
    }
    problems.extend(missing_tests(pages.get(Path::new(SECURITY)).map_or("", String::as_str), &sources));
    if problems.is_empty() { Verdict::Passed } else { Verdict::Failed(problems.join("; ")) }
}

/// All sources below a folder.
fn source_below(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            source_below(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap_or_default());
        }
    }
}

/// Tests that a table names in its last column and that are not there; rows without a test.
fn missing_tests(page: &str, sources: &str) -> Vec<String> {
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| Who ");
    let table = page.split("| Threat |").nth(1).unwrap_or_default();
    let rows: Vec<&str> =
        table.lines().skip(2).take_while(|line| line.starts_with('|')).filter(is_row).collect();
    let mut missing = Vec::new();
    if rows.is_empty() {
        missing.push(format!("{SECURITY} has no table of threats"));
    }
    for row in rows {
        let last = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default();
        let names: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            missing.push(format!("{SECURITY} names no test: {row}"));
        }
        for name in names {
            let is_test =
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            if is_test && !sources.contains(&format!("fn {name}(")) {
                missing.push(format!("{SECURITY} names a test that is not there: {name}"));
            }
        }
    }
    missing
}

fn markdown_below(root: &Path, folder: &Path, names: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    for entry in entries {
        let name = folder.join(entry.file_name());
        if entry.path().is_dir() {
            // Packages of others bring pages along, too.
            if entry.file_name() != "node_modules" {
                markdown_below(root, &name, names);
            }
        } else if name.extension().is_some_and(|ending| ending == "md") {
            names.push(name);
        }
    }
}

/// Links to files that are not there, and to headings that a page does not have.
fn dead_links(pages: &BTreeMap<PathBuf, String>, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for (page, text) in pages {
        for link in links(text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { beside(page, file) };
            let is_known =
                |text: &String| heading.is_empty() || headings(text).iter().any(|one| one == heading);
            if !pages.contains_key(&target) && !exists(&target) {
                dead.push(format!("{} leads to {link}, which is not there", page.display()));
            } else if !pages.get(&target).is_none_or(is_known) {
                dead.push(format!("{} leads to {link}, but there is no such heading", page.display()));
            }
        }
    }
    dead
}

/// Pages of `docs/` to which an index has no link.
fn unlisted(index: &str, pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let Some(text) = pages.get(Path::new(index)) else { return Vec::new() };
    let listed: Vec<PathBuf> = links(text).map(|link| beside(Path::new(index), link)).collect();
    let of_docs = pages.keys().filter(|page| page.starts_with("docs"));
    // Pages about single providers are listed by the page about providers.
    let is_listed = |page: &&PathBuf| {
        listed.contains(page) || page.starts_with("docs/models") && !page.ends_with("README.md")
    };
    of_docs
        .filter(|page| !is_listed(page))
        .map(|page| format!("{index} does not list {}", page.display()))
        .collect()
}

/// What the links of a page lead to: files and headings, not places on the web nor in the library.
fn links(text: &str) -> impl Iterator<Item = &str> {
    outside_code(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| {
        let link = rest.split([')', ' ']).next()?;
        let elsewhere = link.contains("://") || link.contains("::") || link.starts_with("mailto:");
        (!elsewhere && !link.is_empty()).then_some(link)
    })
}

/// The headings of a page, as links name them.
fn headings(text: &str) -> Vec<String> {
    let slug = |line: &str| {
        let kept = line.trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect::<String>()
    };
    let is_heading = |line: &&str| line.starts_with('#');
    outside_code(text).filter(is_heading).map(|line| slug(line.trim_start_matches('#'))).collect()
}

fn outside_code(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The file that a link of a page means.
fn beside(page: &Path, link: &str) -> PathBuf {
    let file = link.split('#').next().unwrap_or_default();
    let mut path = page.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        pages.iter().map(|(name, text)| (PathBuf::from(name), (*text).to_owned())).collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "[a](b.md) [b](../README.md#two-words) [c](gone.md) [d](#here) [e](b.md#gone) [f](https://x.y)\n\
                    # Here\n```\n[g](code.md)\n```\n[h](crate::Thing)";
        let all = pages(&[("docs/a.md", text), ("docs/b.md", "# B"), ("README.md", "## Two `words`")]);
        let dead = dead_links(&all, &|_| false);
        assert_eq!(dead.len(), 2, "{dead:?}");
        assert!(dead[0].contains("gone.md") && dead[1].contains("b.md#gone"), "{dead:?}");
    }

    #[test]
    fn pages_that_nobody_lists_are_found() {
        let all = pages(&[("README.md", "[a](docs/a.md#there)"), ("docs/a.md", ""), ("docs/b.md", "")]);
        assert_eq!(unlisted("README.md", &all), ["README.md does not list docs/b.md"]);
    }

    #[test]
    fn headings_are_named_as_links_name_them() {
        assert_eq!(headings("## A middleware (Eino's `Mw`)"), ["a-middleware-einos-mw"]);
    }

    #[test]
    fn a_threat_without_a_test_is_seen() {
        let page = "| Who | a |\n\n| Threat | Held | Test |\n|---|---|---|\n| a | b | `good_one`, `bad_one` |\n| c | d | none |\n| e | f | `cargo x` |\n";
        let missing = missing_tests(page, "async fn good_one() {}");
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].contains("bad_one") && missing[1].contains("| c | d |"), "{missing:?}");
        assert_eq!(missing_tests("", "").len(), 1);
    }
}
