//! The control channel: how a test asks the engine for its truth.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use super::{Control, Truth};

/// What the control channel asks of the process.
pub(super) trait Keeper: Send + Sync + 'static {
    fn truth(&self) -> Truth;
    fn reset(&self);
}

/// Starts the channel; prints `control ADDR` for a TCP one.
pub(super) fn start(control: &Control, keeper: Arc<dyn Keeper>) -> anyhow::Result<()> {
    match control {
        Control::None => {}
        Control::Stdin => {
            std::thread::spawn(move || stdin(&*keeper));
        }
        Control::Tcp(address) => tcp(*address, keeper)?,
    }
    Ok(())
}

fn json(keeper: &dyn Keeper) -> String {
    serde_json::to_string(&keeper.truth()).expect("truth is JSON")
}

fn stdin(keeper: &dyn Keeper) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.trim() {
            "truth" => println!("truth {}", json(keeper)),
            "reset" => {
                keeper.reset();
                println!("reset done");
            }
            other => println!("unknown command {other:?}"),
        }
    }
}

fn tcp(address: SocketAddr, keeper: Arc<dyn Keeper>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("control {}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut line = String::new();
            let mut reader = BufReader::new(stream);
            let _ = reader.read_line(&mut line);
            let (status, body) = match line.trim_end() {
                l if l.starts_with("GET /truth ") => ("200 OK", json(&*keeper)),
                l if l.starts_with("POST /reset ") => {
                    keeper.reset();
                    ("200 OK", "{}".to_owned())
                }
                _ => ("404 Not Found", String::new()),
            };
            let mut stream = reader.into_inner();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all((head + &body).as_bytes());
            // Read to the end so that the close is no reset.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    Ok(())
}
