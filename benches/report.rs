//! The results of a run, as tables and plots. Tables are printed to standard output. Both are written to `target/bench` and,
//! on request, to the documents.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use anyhow::ensure;
use serde_json::{Map, Value, json};

const DIRECTORY: &str = "target/bench";
/// The documents whose tables are replaced on publishing, and the directory of its plots.
const DOCUMENTS: [&str; 2] = ["docs/performance.md", "docs/scale.md"];
const IMAGES: &str = "docs/images";
/// The markers around a generated part of the document, such as `<!-- measured: recording -->`.
const BEGIN: &str = "<!-- measured: ";
const END: &str = "<!-- end -->";

/// A column of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    name: String,
    shown: Shown,
}

/// How a figure is printed.
#[derive(Debug, Clone, Copy)]
enum Shown {
    Decimals(usize),
    /// About three significant digits.
    Digits,
    /// `yes` for a positive figure, otherwise `no`.
    YesOrNo,
}

/// Returns a column with this many decimals.
pub(crate) fn column(name: &str, decimals: usize) -> Column {
    let (name, shown) = (name.to_owned(), Shown::Decimals(decimals));
    Column { name, shown }
}

/// Returns a column for numbers with different units, each printed with about three significant digits.
pub(crate) fn digits(name: &str) -> Column {
    let (name, shown) = (name.to_owned(), Shown::Digits);
    Column { name, shown }
}

/// Returns a column of yes or no values.
pub(crate) fn yes_or_no(name: &str) -> Column {
    let (name, shown) = (name.to_owned(), Shown::YesOrNo);
    Column { name, shown }
}

impl Column {
    fn show(&self, figure: f64) -> String {
        match self.shown {
            _ if figure.is_nan() => String::new(),
            Shown::Decimals(decimals) => format!("{figure:.decimals$}"),
            Shown::Digits if figure >= 100.0 => format!("{figure:.0}"),
            Shown::Digits if figure >= 10.0 => format!("{figure:.1}"),
            Shown::Digits => format!("{figure:.3}"),
            Shown::YesOrNo if figure > 0.0 => "yes".to_owned(),
            Shown::YesOrNo => "**no**".to_owned(),
        }
    }
}

/// Rows of numbers; NaN means not measured.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    id: String,
    title: String,
    columns: Vec<Column>,
    rows: Vec<(String, Vec<f64>)>,
}

impl Table {
    /// Returns an empty table, which documents refer to by this id.
    pub(crate) fn new(id: &str, title: &str, columns: &[Column]) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, name: &str, figures: impl IntoIterator<Item = f64>) {
        self.rows.push((name.to_owned(), figures.into_iter().collect()));
    }

    /// Returns the figure in a row and column; NaN if there is none.
    pub(crate) fn get(&self, row: &str, column: &str) -> f64 {
        let at = self.columns.iter().position(|candidate| candidate.name == column);
        let row = self.rows.iter().find(|(name, _)| name == row);
        let figure = row.zip(at).and_then(|((_, row), at)| row.get(at));
        figure.copied().unwrap_or(f64::NAN)
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let head = self.columns.iter().map(|column| column.name.clone());
        let head = std::iter::once(String::new()).chain(head).collect();
        let row = |(name, figures): &(String, Vec<f64>)| {
            let figures = self.columns.iter().zip(figures);
            let figures = figures.map(|(column, figure)| column.show(*figure));
            std::iter::once(name.clone()).chain(figures).collect()
        };
        std::iter::once(head).chain(self.rows.iter().map(row)).collect()
    }

    fn markdown(&self) -> String {
        let mut text = format!("{}:\n\n", self.title);
        for (number, row) in self.cells().iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if number == 0 {
                let _ = writeln!(text, "| {}", "--- | ".repeat(row.len()).trim_end());
            }
        }
        text
    }

    fn print(&self) {
        let cells = self.cells();
        let width = |at: usize| {
            let cells = cells.iter().map(|row| row[at].chars().count());
            cells.max().unwrap_or_default()
        };
        println!("\n{}", self.title);
        for row in &cells {
            print!("{:<1$}", row[0], width(0));
            for (at, cell) in row.iter().enumerate().skip(1) {
                print!("  {cell:>0$}", width(at));
            }
            println!();
        }
    }

    fn json(&self) -> Value {
        let row = |(name, figures): &(String, Vec<f64>)| {
            let figures = self.columns.iter().zip(figures);
            // NaN becomes null.
            let mut row: Map<String, Value> =
                figures.map(|(column, figure)| (column.name.clone(), json!(figure))).collect();
            row.insert("name".to_owned(), json!(name));
            Value::Object(row)
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        json!({ "id": self.id, "title": self.title, "rows": rows })
    }
}

/// All results of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    quick: bool,
    tables: Vec<Table>,
    /// The name and SVG text of each plot.
    plots: Vec<(String, String)>,
}

impl Report {
    /// Returns an empty report. With `quick`, there is a single round with less load, for a functional check only.
    pub(crate) fn new(quick: bool) -> Self {
        Self { quick, ..Self::default() }
    }

    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    /// Prints and stores a table.
    pub(crate) fn add(&mut self, table: Table) {
        table.print();
        self.tables.push(table);
    }

    /// Like [`Self::add`], but puts the table before all others.
    pub(crate) fn add_first(&mut self, table: Table) {
        table.print();
        self.tables.insert(0, table);
    }

    pub(crate) fn plot(&mut self, name: &str, svg: String) {
        self.plots.push((name.to_owned(), svg));
    }

    /// Writes the results to `target/bench` and, if they are to be published, to the documents.
    pub(crate) fn write(&self, is_published: bool) -> anyhow::Result<()> {
        let machine = machine()?;
        fs::create_dir_all(DIRECTORY)?;
        let mut text = format!("# Benchmarks\n\n{machine}\n");
        for table in &self.tables {
            let _ = write!(text, "\n{}", table.markdown());
        }
        for (name, svg) in &self.plots {
            let _ = write!(text, "\n![{name}]({name}.svg)\n");
            fs::write(format!("{DIRECTORY}/{name}.svg"), svg)?;
        }
        fs::write(format!("{DIRECTORY}/report.md"), text)?;
        let tables: Vec<_> = self.tables.iter().map(Table::json).collect();
        let all = json!({ "machine": machine, "quick": self.quick, "tables": tables });
        let all = serde_json::to_string_pretty(&all)?;
        fs::write(format!("{DIRECTORY}/report.json"), all)?;
        println!("\n{machine}\n{DIRECTORY}/report.md contains all results");
        if is_published {
            ensure!(!self.quick, "results of --quick are not published");
            self.publish(&machine)?;
        }
        Ok(())
    }

    fn publish(&self, machine: &str) -> anyhow::Result<()> {
        // Sections may be published from different machines.
        let processor = field("/proc/cpuinfo", "model name")?;
        for path in DOCUMENTS {
            let mut document = fs::read_to_string(path)?;
            let mut replace = |id: &str, by: &str| {
                let with = replaced(&document, id, by);
                with.map(|with| document = with).is_some()
            };
            replace("machine", &format!("{machine}\n"));
            for table in &self.tables {
                let text = table.markdown().replacen(":\n", &format!(", on {processor}:\n"), 1);
                replace(&table.id, &text);
            }
            for (name, svg) in &self.plots {
                let file = format!("performance-{name}.svg");
                let title = svg.split("aria-label=\"").nth(1);
                let title = title.and_then(|rest| rest.split('"').next());
                let image = format!("![{}](images/{file})\n", title.unwrap_or(name));
                if replace(&format!("plot-{name}"), &image) {
                    fs::write(format!("{IMAGES}/{file}"), svg)?;
                }
            }
            fs::write(path, document)?;
            println!("published to {path}");
        }
        Ok(())
    }
}

/// Returns the document with the generated part `id` replaced, or `None` if the document does not contain that part.
fn replaced(document: &str, id: &str, by: &str) -> Option<String> {
    let begin = format!("{BEGIN}{id} -->\n");
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}{by}{END}{after}"))
}

/// Returns the first value of this name in a file of `/proc`.
fn field(path: &str, name: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_once(':'));
    Ok(value.map_or_else(String::new, |(_, value)| value.trim().to_owned()))
}

/// Returns a description of the machine without its processor, and the versions of Linux, Redis and eds.
fn machine() -> anyhow::Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let redis = Command::new(testing::redis::program()).arg("--version").output()?;
    let redis = String::from_utf8_lossy(&redis.stdout).into_owned();
    let redis = redis.split(' ').find_map(|word| word.strip_prefix("v="));
    Ok(format!(
        "{} cores, {} of memory, Linux {}, Redis {}, eds {}.",
        std::thread::available_parallelism()?,
        field("/proc/meminfo", "MemTotal")?,
        kernel.trim(),
        redis.unwrap_or("unknown"),
        env!("CARGO_PKG_VERSION"),
    ))
}
