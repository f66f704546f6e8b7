//! The report: rows against their bars, and tables of detail.

/// Whether a number meets its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does.
    Pass,
    /// It does not.
    Short,
    /// There is no bar.
    Shown,
}

impl Verdict {
    /// Passes when `ok`.
    pub fn of(ok: bool) -> Self {
        if ok { Self::Pass } else { Self::Short }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Short => "short",
            Self::Shown => "",
        }
    }
}

/// A table below the rows.
#[derive(Debug)]
pub(super) struct Detail {
    title: String,
    header: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Detail {
    /// An empty table.
    pub fn new(title: &str, header: &[&str]) -> Self {
        let header = header.iter().map(|h| (*h).to_owned()).collect();
        Self {
            title: title.to_owned(),
            header,
            lines: Vec::new(),
        }
    }

    /// Adds a line.
    pub fn line(&mut self, cells: &[String]) {
        println!("{}", cells.join("  "));
        self.lines.push(cells.to_vec());
    }
}

/// Everything measured so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    rows: Vec<Vec<String>>,
    details: Vec<Detail>,
}

impl Report {
    /// Adds a row.
    pub fn row(&mut self, what: &str, bar: &str, measured: &str, verdict: Verdict, how: &str) {
        println!("{what}: {measured} (bar: {bar}) {}", verdict.as_str());
        let cells = [what, bar, measured, verdict.as_str(), how];
        self.rows
            .push(cells.iter().map(|c| (*c).to_owned()).collect());
    }

    /// Adds a table of detail.
    pub fn detail(&mut self, detail: Detail) {
        self.details.push(detail);
    }

    /// Prints the tables.
    pub fn print(&self, quick: bool) {
        let title = if quick {
            "Bars (quick run: the numbers mean little)"
        } else {
            "Bars"
        };
        println!("\n## {title}\n");
        table(
            &["what", "bar", "measured", "", "how"].map(str::to_owned),
            &self.rows,
        );
        for detail in &self.details {
            println!("\n## {}\n", detail.title);
            table(&detail.header, &detail.lines);
        }
    }
}

fn table(header: &[String], lines: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "/")).collect();
        println!("| {} |", cells.join(" | "));
    };
    line(header);
    println!("|{}", "---|".repeat(header.len()));
    lines.iter().for_each(|cells| line(cells));
}
