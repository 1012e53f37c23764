@rem The `cputrain` command on Windows.
@if exist "%~dp0python.exe" ("%~dp0python.exe" -m cputrain.launch %*) else ("%~dp0..\python.exe" -m cputrain.launch %*)
