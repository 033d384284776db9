// Builds the emulator's runtime as WebAssembly: node runtime.mjs FOLDER
import { runClang } from '@yowasp/clang'; import fs from 'node:fs'; import path from 'node:path';
const EMU='../../../ladder/core/emulator';
function tree(d){const o={};for(const e of fs.readdirSync(d,{withFileTypes:true})){const p=path.join(d,e.name);o[e.name]=e.isDirectory()?tree(p):fs.readFileSync(p,'utf8');}return o;}
const skip=['fiber.cpp','faults.cpp'];
const rt=tree(EMU+'/runtime');
const files={include:tree(EMU+'/include'),runtime:rt,wasm:tree(EMU+'/wasm')};
let unity='';
for(const f of Object.keys(rt)) if(f.endsWith('.cpp')&&!skip.includes(f)) unity+=`#include "runtime/${f}"\n`;
for(const f of Object.keys(files.wasm)) unity+=`#include "wasm/${f}"\n`;
files['unity.cpp']=unity;
const out=process.argv[2];
const names=new Set(files.include.emulator['thread.h'].match(/\bemulator_\w+/g));
for(const n of ['copy']) names.add('emulator_'+n);
for(const size of [1,2,4,8,16]) for(const kind of ['read','write','read_write','unaligned_read','unaligned_write','volatile_read','volatile_write','unaligned_volatile_read','unaligned_volatile_write']) names.add('__tsan_'+kind+size);
for(const n of ['read_range','write_range','memcpy','memmove','memset','init']) names.add('__tsan_'+n);
const math=new Set(['memcpy','memmove','memset','fma','fmaf','ldexp','ldexpf','lrintf']);
for(const [,n] of files.include['math.h'].matchAll(/^EMULATOR_[12]\((\w+)\)/gm)) math.add(n).add(n+'f');
const exports=[...[...names].map(n=>'-Wl,--export-if-defined='+n),...[...math].flatMap(n=>['-Wl,--undefined='+n,'-Wl,--export-if-defined='+n])];
const print=b=>b&&process.stdout.write(Buffer.from(b).toString().slice(0,6000));
const r=await runClang(['clang++','-std=c++17','-O1','-iquote','include','-iquote','runtime','-fvisibility=hidden','-fno-exceptions','-fno-rtti','-fno-strict-aliasing','-Wno-everything','-mbulk-memory','-mexec-model=reactor','unity.cpp',
 '-Wl,--export=__stack_pointer','-Wl,--strip-all',...exports,'-Wl,--export-table','-Wl,--growable-table','-Wl,-z,stack-size=1048576','-Wl,--export=emulator_pc','-Wl,--export=_ZN8emulator7currentE','-o','runtime.wasm'],files,{stderr:print,stdout:print});
fs.writeFileSync(out+'/runtime.linked.wasm',r['runtime.wasm']); console.log(r['runtime.wasm'].length);
