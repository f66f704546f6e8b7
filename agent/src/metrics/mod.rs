//! The numbers: one catalogue of families, one store of what requests added up to, one page.
//!
//! `catalog` declares every family once; `store` takes finished requests and keeps counts, sums
//! and exact inclusive buckets under the admission rules; `walk` lays store and kernel values out
//! family by family; `expo` writes them as text, `proto` as the `prometheus` crate's data model;
//! `docs` writes METRICS.md; `context` is what the node and the cgroups add. Plain functions over plain data: nothing here reads a clock it was
//! not given, opens a file or waits.

pub mod budget;
pub mod catalog;
pub mod context;
pub mod def;
pub mod docs;
pub mod expo;
pub mod hist;
pub mod input;
pub mod proto;
pub mod series;
pub mod status;
pub mod store;
pub mod walk;
pub mod workload;

#[cfg(test)]
mod tests;

pub use budget::Limits;
pub use catalog::METRICS;
pub use def::{Family, Group, MetricDef};
pub use docs::metrics_md;
pub use expo::{Format, Groups, negotiate, render, render_to};
pub use hist::{BucketEdge, parse_bucket_edge};
pub use input::{NodeInput, OpenRequest, PageInput, WorkloadInput};
pub use proto::families;
pub use store::{ResponseHead, Snapshot, Store, StoreConfig};
