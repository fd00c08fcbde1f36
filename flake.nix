# Everything that names an arch, a pack or a compiler is read from variants/ and packages/.
{
  description = "Exact scaled-dot-product attention for NVIDIA GPUs, head dimensions up to 1024";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];

      readToml = file: builtins.fromTOML (builtins.readFile file);
      packs = readToml ./variants/packs.toml;
      toolchainFiles = builtins.filter (name: builtins.match ".*\\.toml" name != null) (
        builtins.attrNames (builtins.readDir ./variants/toolchains)
      );
      toolchains = map (
        name:
        readToml (./variants/toolchains + "/${name}")
        // {
          name = builtins.head (builtins.match "(.*)\\.toml" name);
        }
      ) toolchainFiles;
      # The compiler that nixpkgs has; NVRTC is for builds from the Python package index.
      compilers = builtins.filter (toolchain: toolchain.kind == "nvcc") toolchains;
      version = builtins.head (builtins.match "([^\n]*)\n*" (builtins.readFile ./VERSION));

      # Names of the packages that a list of Python requirements asks for. A marker is for Pythons older than nixpkgs'.
      names =
        requirements:
        map (line: builtins.head (builtins.match "([A-Za-z0-9._-]+).*" line)) (
          builtins.filter (line: builtins.match ".*;.*" line == null) requirements
        );

      forSystem =
        system:
        let
          pkgs = import nixpkgs {
            inherit system;
            config.allowUnfree = true; # the CUDA compiler is
          };
          python = pkgs.python3;
          pythonPackages = python.pkgs;
          find =
            requirements:
            map (name: pythonPackages.${name} or (throw "this nixpkgs has no Python package ${name}")) (
              names requirements
            );

          # nvcc and the headers that every kernel includes through it.
          compilerOf =
            toolchain:
            let
              parts = builtins.match "([0-9]+)\\.([0-9]+)\\..*" toolchain.version;
              set = "cudaPackages_${builtins.elemAt parts 0}_${builtins.elemAt parts 1}";
              inherit (pkgs.${set}) cuda_nvcc cuda_cudart cuda_cccl;
            in
            if cuda_nvcc.version == toolchain.version then
              {
                inherit cuda_nvcc;
                headers = [
                  cuda_cudart
                  cuda_cccl
                ];
              }
            else
              throw "${set}.cuda_nvcc of this nixpkgs is ${cuda_nvcc.version}, but variants/toolchains/${toolchain.name}.toml pins ${toolchain.version}";

          distribution =
            pname: attributes:
            let
              project = readToml (./packages + "/${pname}/pyproject.toml");
            in
            pythonPackages.buildPythonPackage (
              {
                inherit pname version;
                pyproject = true;
                src = self;
                sourceRoot = "source/packages/${pname}";
                build-system = find project.build-system.requires;
                doCheck = false;
              }
              // attributes project
            );

          # Every distribution, with kernels of one compiler.
          distributionsOf =
            toolchain:
            let
              kernels =
                pack: project:
                {
                  nativeBuildInputs = [ (compilerOf toolchain).cuda_nvcc ];
                  buildInputs = (compilerOf toolchain).headers;
                  env = {
                    FFPA_BUILD_PRESET = "release";
                    FFPA_BUILD_TOOLCHAIN = toolchain.name;
                  };
                  preBuild = ''
                    export FFPA_BUILD_CACHE="$TMPDIR/ffpa-cache"
                  '';
                  dependencies =
                    if pack.distribution == packs.core.distribution then
                      find project.project.dependencies
                    else
                      [ built.${packs.core.distribution} ];
                };
              built = builtins.listToAttrs (
                map (pack: {
                  name = pack.distribution;
                  value = distribution pack.distribution (kernels pack);
                }) (builtins.attrValues packs)
              );
            in
            built
            // {
              ffpa = distribution "ffpa" (project: {
                dependencies = builtins.attrValues built;
                pythonImportsCheck = [ "ffpa_attn" ];
              });
            };

          majorOf = toolchain: builtins.head (builtins.match "([0-9]+)\\..*" toolchain.version);
          sets = builtins.listToAttrs (
            map (toolchain: {
              name = majorOf toolchain;
              value = distributionsOf toolchain;
            }) compilers
          );
          # Cubins of the oldest compiler load on the drivers of the newer ones too.
          oldest = builtins.head (builtins.sort (a: b: builtins.compareVersions a.version b.version < 0) compilers);
          base = sets.${majorOf oldest};
        in
        {
          packages =
            builtins.removeAttrs base [ "ffpa" ]
            // builtins.listToAttrs (
              map (major: {
                name = "ffpa-cuda${major}";
                value = sets.${major}.ffpa;
              }) (builtins.attrNames sets)
            )
            // {
              default = base.ffpa;
            };

          devShells.default = pkgs.mkShell {
            packages = [
              (python.withPackages (
                p:
                map (name: p.${name}) (
                  names (readToml ./packages/ffpa-core/pyproject.toml).build-system.requires
                  ++ [
                    "nox"
                    "pytest"
                    "hypothesis"
                    "torch"
                  ]
                )
              ))
              (compilerOf oldest).cuda_nvcc
              pkgs.clang-tools
            ];
            buildInputs = (compilerOf oldest).headers;
          };

          checks = {
            generated-files =
              pkgs.runCommand "ffpa-generated-files"
                {
                  nativeBuildInputs = [ python ];
                }
                ''
                  export PYTHONPATH=${self}/src PYTHONDONTWRITEBYTECODE=1
                  for made in distributions recipe workflows flags_page; do
                    python -m "ffpa_build.$made" check
                  done
                  touch "$out"
                '';
            packs =
              pkgs.runCommand "ffpa-packs"
                {
                  nativeBuildInputs = [ (python.withPackages (_: [ base.ffpa ])) ];
                }
                ''
                  python -m ffpa_attn packs > "$out"
                '';
          };
        };

      all = builtins.listToAttrs (
        map (system: {
          name = system;
          value = forSystem system;
        }) systems
      );
      pick = output: builtins.mapAttrs (_: outputs: outputs.${output}) all;
    in
    {
      packages = pick "packages";
      devShells = pick "devShells";
      checks = pick "checks";
    };
}
