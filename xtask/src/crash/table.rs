//! The figures, as a table.

use super::audit::Findings;

/// Where all scenarios live through the same kills.
pub(super) const SERVER_KILLED: &str = "postgres, server killed";

/// What came of one scenario on one store.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) store: &'static str,
    pub(super) scenario: &'static str,
    pub(super) kills: u32,
    pub(super) findings: Findings,
}

pub(super) fn header() {
    println!(
        "{:<26}{:<12}{:>7}{:>7}{:>10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}",
        "", "", "", "", "finished", "events", "events", "effects", "effects", "unknown", "idemp.", "other"
    );
    println!(
        "{:<26}{:<12}{:>7}{:>7}{:>10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}",
        "store",
        "scenario",
        "kills",
        "runs",
        "%",
        "lost",
        "doubled",
        "doubled",
        "missing",
        "outcome",
        "repeats",
        "problems"
    );
}

impl Row {
    pub(super) fn print(&self) {
        let Findings {
            runs, finished, events_lost, events_doubled, effects_doubled, effects_missing, ..
        } = self.findings;
        // Cut off and not rounded: only all is 100 %.
        let tenths = u64::from(finished) * 1_000 / u64::from(runs.max(1));
        let percent = format!("{}.{}", tenths / 10, tenths % 10);
        println!(
            "{:<26}{:<12}{:>7}{runs:>7}{percent:>10}{events_lost:>8}{events_doubled:>9}{effects_doubled:>9}\
             {effects_missing:>9}{:>9}{:>9}{:>10}",
            self.store,
            self.scenario,
            self.kills,
            self.findings.unknown,
            self.findings.repeats,
            self.findings.problems.len()
        );
    }
}

/// Prints the sum of all rows of each store.
pub(super) fn total(rows: &[Row]) {
    let mut stores: Vec<&'static str> = rows.iter().map(|row| row.store).collect();
    stores.dedup();
    for store in stores {
        let mut sum = Row { store, scenario: "all", kills: 0, findings: Findings::default() };
        for row in rows.iter().filter(|row| row.store == store) {
            sum.kills = if store == SERVER_KILLED { row.kills } else { sum.kills + row.kills };
            sum.findings += row.findings.clone();
        }
        sum.print();
    }
}
