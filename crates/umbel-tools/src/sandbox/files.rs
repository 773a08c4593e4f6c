//! Files in and out of a sandbox, as tar archives. What comes out is only read: nothing is unpacked to this machine.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};

use umbel_core::{CodeFile, Error, ErrorKind, Result};

use super::Limits;
use super::verdict::bytes;

/// The longest name of a file.
const NAME: usize = 255;

/// Media types by the ends of names.
const TYPES: [(&str, &str); 18] = [
    ("csv", "text/csv"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("json", "application/json"),
    ("md", "text/markdown"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("py", "text/x-python"),
    ("svg", "image/svg+xml"),
    ("tsv", "text/tab-separated-values"),
    ("txt", "text/plain"),
    ("webp", "image/webp"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "application/xml"),
    ("zip", "application/zip"),
];

/// Whether the files that code is to get have names.
pub(super) fn check(files: &[CodeFile]) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidInput, format!("files for code: {why}")));
    if let Some(file) = files.iter().find(|file| !is_name(&file.name)) {
        return refuse(format!(
            "`{}` is no name of a file: it must be plain and no path",
            file.name.escape_debug()
        ));
    }
    Ok(())
}

/// Leaves out files that are too many or too large, and says which. The last ones are the newest, and stay if they can.
pub(super) fn fit(files: &mut Vec<CodeFile>, limits: &Limits) -> Option<String> {
    let (mut count, mut size, mut left_out) = (0, 0_usize, Vec::new());
    files.reverse();
    files.retain(|file| {
        let fits = count < limits.files && size.saturating_add(file.data.len()) <= limits.file_bytes;
        if fits {
            (count, size) = (count + 1, size + file.data.len());
        } else {
            left_out.push(format!("`{}`", file.name));
        }
        fits
    });
    files.reverse();
    left_out.reverse();
    (!left_out.is_empty()).then(|| {
        format!(
            "These files were not given to the code, since it may have {} with {} together: {}.",
            limits.files,
            bytes(limits.file_bytes as u64),
            left_out.join(", ")
        )
    })
}

/// Whether a text names a file, and nothing else, everywhere.
fn is_name(name: &str) -> bool {
    let is_plain = !name.contains(['/', '\\']) && !name.chars().any(char::is_control);
    is_plain && !name.is_empty() && name.len() <= NAME && name != "." && name != ".."
}

/// The code and its files, as the supervisor takes them.
pub(super) fn pack(code: &str, files: &[&CodeFile]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |path: String, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, path, data)
    };
    add("code/main".to_owned(), code.as_bytes())?;
    files.iter().try_for_each(|file| add(format!("work/{}", file.name), &file.data))?;
    archive.into_inner()
}

/// What tells files of one name apart.
pub(super) fn digest(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

/// Why code could not be run with what it was given.
pub(super) fn no_room(limits: &Limits) -> String {
    let room = bytes(limits.disk);
    format!(
        "It was not run: there is no room for it and its files in its working directory, which has {room}."
    )
}

/// Why there are no files.
pub(super) fn too_large(limits: &Limits) -> String {
    format!(
        "The files that it left are too large: they may have {} together.",
        bytes(limits.file_bytes as u64)
    )
}

/// The files of an archive that are news, by name, and what is to be said of those that are left out. Too many or too large
/// ones are an error.
pub(super) fn unpack(
    archive: &[u8],
    limits: &Limits,
    known: &mut HashMap<String, u64>,
) -> std::result::Result<(Vec<CodeFile>, Option<String>), String> {
    let (mut files, mut left_out, mut count, mut size) = (Vec::new(), 0, 0, 0);
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().map_err(|_| too_large(limits))?;
    // What cannot be read is at its end.
    for mut entry in entries.map_while(io::Result::ok) {
        count += 1;
        if count > limits.files {
            return Err(format!("It left too many files: it may leave {}.", limits.files));
        }
        let path = entry.path_bytes().into_owned();
        let name = path.strip_prefix(b"./").unwrap_or(&path);
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name)).map(str::to_owned);
        let (Some(name), true) = (name, entry.header().entry_type().is_file()) else {
            left_out += 1;
            continue;
        };
        let mut data = Vec::new();
        let is_read = entry.by_ref().take(limits.file_bytes as u64 + 1).read_to_end(&mut data).is_ok();
        size += data.len();
        if size > limits.file_bytes {
            return Err(too_large(limits));
        }
        if !is_read || known.get(&name) == Some(&digest(&data)) {
            continue;
        }
        files.push(CodeFile::new(&name, mime_type(&name), data));
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup_by(|a, b| a.name == b.name);
    // Only now: those of an archive that is refused come again.
    known.extend(files.iter().map(|file| (file.name.clone(), digest(&file.data))));
    let note = match left_out {
        0 => None,
        1 => Some("A file that it left has a name that cannot be used, and was left out.".to_owned()),
        count => {
            Some(format!("{count} files that it left have names that cannot be used, and were left out."))
        }
    };
    Ok((files, note))
}

fn mime_type(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase()).unwrap_or_default();
    TYPES.iter().find(|(known, _)| *known == end).map_or("application/octet-stream", |(_, mime)| *mime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits() -> Limits {
        let mut limits = crate::Sandbox::python().limits;
        (limits.files, limits.file_bytes) = (3, 100);
        limits
    }

    fn archive(files: &[(&[u8], tar::EntryType, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, kind, data) in files {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
            header.set_size(data.len() as u64);
            header.set_entry_type(*kind);
            header.set_cksum();
            archive.append(&header, *data).unwrap();
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn only_plain_files_with_plain_names_come_out() {
        use tar::EntryType as Kind;
        let names: [&[u8]; 9] =
            [b"/etc/passwd", b"../up", b"./../up", b"a/b", b"..", b".", b"\xff\xfe", b"a\nb", b"a\\b"];
        for name in names {
            let (files, note) =
                unpack(&archive(&[(name, Kind::Regular, b"x")]), &limits(), &mut HashMap::new()).unwrap();
            assert!(files.is_empty() && note.is_some(), "{name:?}");
        }
        for kind in [Kind::Symlink, Kind::Link, Kind::Fifo, Kind::Char, Kind::Block, Kind::Directory] {
            let (files, note) =
                unpack(&archive(&[(b"./a", kind, b"")]), &limits(), &mut HashMap::new()).unwrap();
            assert!(files.is_empty() && note.is_some(), "{kind:?}");
        }
        let plain = archive(&[(b"./b.csv", Kind::Regular, b"1,2"), (b"./a", Kind::Regular, b"")]);
        let (files, note) = unpack(&plain, &limits(), &mut HashMap::new()).unwrap();
        let expected = [
            CodeFile::new("a", "application/octet-stream", Vec::new()),
            CodeFile::new("b.csv", "text/csv", *b"1,2"),
        ];
        assert_eq!((files.as_slice(), note), (expected.as_slice(), None));
    }

    #[test]
    fn a_file_that_is_known_is_no_news_until_it_changes() {
        let mut known = HashMap::from([("a".to_owned(), digest(b"1"))]);
        let same = archive(&[(b"./a", tar::EntryType::Regular, b"1")]);
        assert_eq!(unpack(&same, &limits(), &mut known), Ok((Vec::new(), None)));
        let other = archive(&[(b"./a", tar::EntryType::Regular, b"2")]);
        assert_eq!(unpack(&other, &limits(), &mut known).unwrap().0.len(), 1);
        assert_eq!(unpack(&other, &limits(), &mut known).unwrap().0.len(), 0);
    }

    #[test]
    fn too_many_and_too_large_ones_are_refused() {
        let regular = tar::EntryType::Regular;
        let many = archive(&[
            (b"a", regular, b""),
            (b"b", regular, b""),
            (b"c", regular, b""),
            (b"d", regular, b""),
        ]);
        assert!(unpack(&many, &limits(), &mut HashMap::new()).unwrap_err().contains("may leave 3"));
        let large = archive(&[(b"a", regular, &[0; 60]), (b"b", regular, &[0; 60])]);
        assert!(unpack(&large, &limits(), &mut HashMap::new()).unwrap_err().contains("too large"));
    }

    #[test]
    fn input_files_are_held_against_the_limits() {
        let file = |name: &str, size: usize| CodeFile::new(name, "text/plain", vec![0; size]);
        let fit = |files: &[CodeFile]| {
            let mut files = files.to_vec();
            let note = fit(&mut files, &limits());
            let names: Vec<String> = files.into_iter().map(|file| file.name).collect();
            (names.concat(), note.unwrap_or_default())
        };
        assert_eq!(fit(&[file("a", 50), file("b", 50)]), ("ab".to_owned(), String::new()));
        let (kept, note) = fit(&[file("a", 51), file("b", 50), file("c", 1)]);
        assert!(kept == "bc" && note.contains("100 bytes together: `a`."), "{kept} {note}");
        let (kept, note) = fit(&["a", "b", "c", "d", "e"].map(|name| file(name, 1)));
        assert!(kept == "cde" && note.ends_with("`a`, `b`."), "{kept} {note}");
        assert!(check(&[file("a", 1)]).is_ok());
        for name in ["", ".", "..", "a/b", "/a", "a\0", "a\n", &"x".repeat(256)] {
            assert!(check(&[file(name, 1)]).unwrap_err().message().contains("no name of a file"), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048), at in 0_usize..512) {
            let mut archive = archive(&[(b"./a", tar::EntryType::Regular, b"1"), (b"./b", tar::EntryType::Regular, b"2")]);
            let _ = unpack(&bytes, &limits(), &mut HashMap::new());
            archive.iter_mut().skip(at).zip(&bytes).for_each(|(to, from)| *to = *from);
            let _ = unpack(&archive, &limits(), &mut HashMap::new());
        }
    }
}
