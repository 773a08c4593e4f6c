//! The models that judge, and the tape of what they said.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use umbel::eval::{Judge, Suite};
use umbel::{RecordingModel, ReplayModel};

use super::Options;
use crate::args::{bad_usage, cannot, write_private};

/// Who judges. Each model is made once for all files, so that one tape holds what it says of all of them.
pub(super) struct Judges<'a> {
    options: &'a Options,
    tape: Tape,
    made: BTreeMap<String, Judge>,
}

/// Where the words of judges come from, or go to.
enum Tape {
    /// They are asked, and that is all.
    None,
    /// All that is said stands here already.
    Played(String),
    /// It is written there once all is said.
    Written(PathBuf, Vec<RecordingModel>),
}

impl<'a> Judges<'a> {
    pub(super) fn new(options: &'a Options) -> io::Result<Self> {
        let tape = match &options.judge_tape {
            None => Tape::None,
            Some(path) if path.exists() => {
                Tape::Played(std::fs::read_to_string(path).map_err(|error| cannot(path, &error))?)
            }
            Some(path) => Tape::Written(path.clone(), Vec::new()),
        };
        Ok(Self { options, tape, made: BTreeMap::new() })
    }

    /// Who judges the cases of a file, if anybody does.
    pub(super) fn of(&mut self, suite: &Suite) -> io::Result<Option<Judge>> {
        let chosen = suite.judge.as_ref();
        let name = self.options.judge.clone().or_else(|| chosen.map(|judge| judge.model.clone()));
        let name = match (&self.tape, name) {
            (_, Some(name)) => name,
            (Tape::Played(_), None) => "judge".to_owned(),
            (_, None) => return Ok(None),
        };
        let judge = match self.made.get(&name) {
            Some(judge) => judge.clone(),
            None => self.make(&name).map_err(|error| bad_usage(format!("the judge: {}", error.message())))?,
        };
        self.made.insert(name, judge.clone());
        let samples = self.options.samples.or_else(|| chosen.and_then(|judge| judge.samples)).unwrap_or(1);
        Ok(Some(judge.samples(samples)))
    }

    fn make(&mut self, name: &str) -> umbel::Result<Judge> {
        Ok(match &mut self.tape {
            Tape::None => Judge::new(umbel::models::model(name)?),
            Tape::Played(lines) => {
                // Behind the provider, or behind the address.
                let model = name.rsplit_once('#').or_else(|| name.split_once('/'));
                let model = model.map_or(name, |(_, model)| model);
                Judge::new(ReplayModel::from_json_lines(model, lines)?)
            }
            Tape::Written(_, recorded) => {
                let recording = RecordingModel::new(umbel::models::model(name)?);
                recorded.push(recording.clone());
                Judge::new(recording)
            }
        })
    }

    /// Writes the tape, if there is one to be written. Half a tape would be taken for a whole one, so this comes last.
    pub(super) fn keep(&self) -> io::Result<()> {
        let Tape::Written(path, recorded) = &self.tape else { return Ok(()) };
        let lines = recorded.iter().map(RecordingModel::to_json_lines).collect::<umbel::Result<String>>();
        write_private(path, lines.map_err(io::Error::other)?)
    }
}
