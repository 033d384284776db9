import binaryen from 'binaryen'; import fs from 'node:fs';
const [,,inp,out,kind]=process.argv;
let t=Date.now();
const m=binaryen.readBinary(fs.readFileSync(inp)); const F=binaryen.Features;
m.setFeatures(F.BulkMemory|F.SignExt|F.MutableGlobals|F.NontrappingFPToInt|F.Multivalue|F.ReferenceTypes|(F.BulkMemoryOpt||0)|(F.CallIndirectOverlong||0));
if(kind==='runtime'){ binaryen.setPassArgument('asyncify-ignore-imports','1'); binaryen.setPassArgument('asyncify-export-globals','1'); }
else { binaryen.setPassArgument('asyncify-import-globals','1'); }
binaryen.setOptimizeLevel(1); binaryen.setShrinkLevel(0);
if(kind==='runtime') m.runPasses(['asyncify']); else m.runPasses(['asyncify']);
if(kind==='runtime') m.optimize();
console.log('valid',m.validate(), Date.now()-t,'ms');
const b=m.emitBinary(); fs.writeFileSync(out,b); console.log(b.length);
const w=new WebAssembly.Module(b); console.log(WebAssembly.Module.imports(w).map(i=>i.module+'.'+i.name).join(' ')); console.log(WebAssembly.Module.exports(w).map(i=>i.name).join(' ').slice(0,1500));
