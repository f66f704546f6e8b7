//! Hooks and maps of the object.

mod account;
mod control;
mod flows;
mod kernel;
mod life;
mod maps;
mod owner;
mod packet;
mod wire;
