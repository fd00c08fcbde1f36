{
  system,
  config ? { },
}:
let
  # A derivation that has whatever it is given in its environment, so that what it depends on is instantiated too.
  stub =
    name: attributes:
    derivation (
      {
        inherit name system;
        builder = "/not-to-be-built";
      }
      // attributes
    );
  package = pname: version: stub "${pname}-${version}" { inherit version; } // { inherit pname version; };

  pythonNames = [
    "apache-tvm-ffi"
    "click"
    "cyclonedx-python-lib"
    "hatchling"
    "hypothesis"
    "ninja"
    "nox"
    "packaging"
    "platformdirs"
    "psutil"
    "pyelftools"
    "pytest"
    "torch"
    "tqdm"
  ];
  # Refuses what the function of nixpkgs would not know.
  buildPythonPackage =
    {
      pname,
      version,
      pyproject,
      src,
      sourceRoot,
      build-system,
      doCheck,
      dependencies,
      nativeBuildInputs ? [ ],
      buildInputs ? [ ],
      env ? { },
      preBuild ? "",
      pythonImportsCheck ? [ ],
    }:
    stub "python3-${pname}-${version}" (
      {
        inherit
          version
          pyproject
          src
          sourceRoot
          build-system
          doCheck
          dependencies
          nativeBuildInputs
          buildInputs
          preBuild
          pythonImportsCheck
          ;
      }
      // env
    );
  pythonPackages = builtins.listToAttrs (
    map (name: {
      inherit name;
      value = package name "0";
    }) pythonNames
  );
  cudaPackages =
    nvcc:
    if config.allowUnfree or false then
      {
        cuda_nvcc = package "cuda_nvcc" nvcc;
        cuda_cudart = package "cuda_cudart" "0";
        cuda_cccl = package "cuda_cccl" "0";
      }
    else
      throw "CUDA has an unfree licence";
in
{
  python3 = package "python3" "3.13" // {
    pkgs = pythonPackages // {
      inherit buildPythonPackage;
    };
    withPackages = choose: stub "python3-env" { paths = choose pythonPackages; };
  };
  cudaPackages_12_9 = cudaPackages "12.9.86";
  cudaPackages_13_0 = cudaPackages "13.0.88";
  clang-tools = package "clang-tools" "0";
  mkShell = { packages, buildInputs }: stub "shell" { inherit packages buildInputs; };
  runCommand =
    name:
    { nativeBuildInputs }:
    command:
    stub name { inherit nativeBuildInputs command; };
}
