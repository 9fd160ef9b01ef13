//! Pictures are those of Pillow and of the processors of `transformers`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tern_images::{Area, Filter, ImageError, Limits, Picture, Sizing};

fn recorded() -> Value {
    serde_json::from_str(include_str!("pictures.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn size(value: &Value) -> [usize; 2] {
    [0, 1].map(|i| value[i].as_u64().unwrap() as usize)
}

fn pixels(value: &Value) -> Vec<u8> {
    numbers(value).into_iter().map(|n| n as u8).collect()
}

/// The picture of a name, as `scripts/oracle/transformers/pictures.py` makes it.
fn picture(name: &str, [width, height]: [usize; 2]) -> Picture {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let byte = |i: usize| {
        let x = seed.wrapping_add(i as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 56) as u8
    };
    Picture::new(width, height, (0..width * height * 3).map(byte).collect()).unwrap()
}

#[test]
fn resized_pictures_are_those_of_pillow() {
    for case in recorded()["resized"].as_array().unwrap() {
        let filter = match case["filter"].as_str().unwrap() {
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let [width, height] = size(&case["to"]);
        let got = picture(case["name"].as_str().unwrap(), size(&case["from"])).resized(width, height, filter);
        assert_eq!(got.pixels(), pixels(&case["pixels"]), "{} to {} {filter:?}", case["from"], case["to"]);
    }
}

#[test]
fn decoded_files_are_those_of_pillow() {
    let mut wrong = vec![];
    for case in recorded()["files"].as_array().unwrap() {
        let (name, tolerance) = (case["name"].as_str().unwrap(), case["tolerance"].as_u64().unwrap());
        let file = STANDARD.decode(case["file"].as_str().unwrap()).unwrap();
        let got = Picture::decode(&file, Limits::default()).unwrap();
        let off = got.pixels().iter().zip(pixels(&case["pixels"])).map(|(g, w)| g.abs_diff(w)).max();
        println!("{name}: {off:?}");
        if [got.width(), got.height()] != size(&case["size"]) || u64::from(off.unwrap()) > tolerance {
            wrong.push(format!("{name}: {got:?}, off by {off:?}"));
        }
        // half a file is an error or another picture, never a panic; a flipped byte likewise
        for end in 0..file.len() {
            let _ = Picture::decode(&file[..end], Limits::default());
        }
        for at in 0..file.len() {
            let mut other = file.clone();
            other[at] ^= 0x55;
            let _ = Picture::decode(&other, Limits { pixels: 1 << 16 });
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn patches_are_those_of_transformers() {
    for case in recorded()["processed"].as_array().unwrap() {
        let (name, from) = (case["name"].as_str().unwrap(), size(&case["from"]));
        let bound = |key: &str| case[key].as_u64().unwrap() as usize;
        let three = |key: &str| -> [f32; 3] {
            numbers(&case[key]).into_iter().map(|n| n as f32).collect::<Vec<_>>().try_into().unwrap()
        };
        let area = Area { factor: 8, least: bound("least"), most: bound("most") };
        let cut = picture(name, from).cut(Sizing::Area(area), Filter::Bicubic).unwrap();
        let [resized] = &cut.pictures[..] else { panic!("{name}: {cut:?}") };
        assert_eq!(resized.grid(4), size(&case["grid"]), "{name}");
        let (mean, deviation) = (three("image_mean"), three("image_std"));
        let got = resized.patches(4, mean, deviation);
        let off = |key: &str| {
            let want = numbers(&case[key]);
            assert_eq!(got.len(), want.len());
            got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max)
        };
        // what torchvision makes of a picture differs by up to one of 255 steps
        assert!(off("pillow") < 1e-5 && off("torchvision") < 1.01 / 255.0 / 0.5, "{name}: {}", off("pillow"));
    }
}

/// The rule of a recorded cut.
fn rule(case: &Value) -> Sizing {
    let numbers = |key: &str| -> Vec<usize> { numbers(&case[key]).into_iter().map(|n| n as usize).collect() };
    let area = case.get("area").map(|_| numbers("area"));
    let area = area.map(|a| Area { factor: a[0], least: a[1], most: a[2] });
    if let Some(side) = case["square"].as_u64() {
        Sizing::Square(side as usize)
    } else if case.get("budget").is_some() {
        Sizing::Budget { factor: numbers("budget")[0], squares: numbers("budget")[1] }
    } else if case.get("longest").is_some() {
        Sizing::Longest { longest: numbers("longest")[0], factor: numbers("longest")[1] }
    } else if case.get("rows").is_some() {
        Sizing::Rows { longest: numbers("rows")[0], tile: numbers("rows")[1], splits: true }
    } else {
        let [tile, least, most] = numbers("tiles")[..] else { panic!("{case}") };
        Sizing::Tiles { tile, tiles: [least, most], whole: area }
    }
}

#[test]
fn pictures_that_towers_read_are_those_of_transformers() {
    let mut wrong = vec![];
    for case in recorded()["cuts"].as_array().unwrap() {
        let (name, from) = (case["name"].as_str().unwrap(), size(&case["from"]));
        let filter = match case["filter"].as_str().unwrap() {
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let cut = picture(name, from).cut(rule(case), filter).unwrap();
        let sizes: Vec<_> = cut.pictures.iter().map(|p| [p.width(), p.height()]).collect();
        let want: Vec<_> = case["sizes"].as_array().unwrap().iter().map(size).collect();
        let pixels = STANDARD.decode(case["pixels"].as_str().unwrap()).unwrap();
        let got = cut.pictures.iter().flat_map(Picture::pixels);
        let off = got.zip(&pixels).map(|(g, w)| g.abs_diff(*w)).max().unwrap();
        println!("{name}, {:?}: {off}", rule(case));
        let most = case["tolerance"].as_u64().unwrap();
        if sizes != want || u64::from(off) > most {
            wrong.push(format!("{name}, {:?}: {sizes:?} for {want:?}, off by {off}", rule(case)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn hostile_files_are_refused_before_they_are_decoded() {
    let refused = |bytes: &[u8]| Picture::decode(bytes, Limits { pixels: 1000 }).unwrap_err();
    assert_eq!(refused(b""), ImageError::Empty);
    assert_eq!(refused(b"no image"), ImageError::Format);
    assert_eq!(refused(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), ImageError::Format);
    // a BMP of 60000 x 60000 pixels without any
    let mut bmp = b"BM".to_vec();
    bmp.extend([0; 8]);
    bmp.extend(54u32.to_le_bytes());
    bmp.extend(40u32.to_le_bytes());
    bmp.extend(60_000u32.to_le_bytes());
    bmp.extend(60_000u32.to_le_bytes());
    bmp.extend([1, 0, 24, 0]);
    bmp.extend([0; 24]);
    assert_eq!(refused(&bmp), ImageError::TooLarge { width: 60_000, height: 60_000, most: 1000 });
    bmp[18..26].fill(0);
    let error = refused(&bmp);
    assert!(matches!(error, ImageError::NoPixels { .. } | ImageError::Damaged { .. }), "{error}");
    let text = ImageError::TooLarge { width: 3, height: 4, most: 5 }.to_string();
    assert_eq!(text, "the image has 3 x 4 pixels: want at most 5 pixels");
}
