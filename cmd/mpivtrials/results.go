//go:build linux

package main

import (
	"encoding/csv"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// writeCSV writes rows below a heading.
func (d *desk) writeCSV(heading []string, rows [][]string) error {
	f, err := os.Create(d.file(".csv"))
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	_ = w.Write(heading)
	_ = w.WriteAll(rows) // Error has what went wrong
	if err := w.Error(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// A series is a line of a plot, or one colour of its bars.
type series struct {
	name   string
	points plotter.XYs
}

var colors = []color.RGBA{
	{0x2b, 0x6c, 0xb0, 0xff}, {0xc4, 0x3a, 0x31, 0xff}, {0x2f, 0x85, 0x5a, 0xff}, {0x80, 0x5a, 0xd5, 0xff}, {0xb7, 0x79, 0x1f, 0xff},
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Legend.Top = true
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	return p
}

// plotLines draws lines, with a grey band over each interval of x in bands.
func (d *desk) plotLines(title, x, y string, all []series, bands [][2]float64) error {
	p := newPlot(title, x, y)
	top := 0.0
	for _, s := range all {
		for _, at := range s.points {
			top = max(top, at.Y)
		}
	}
	for _, b := range bands {
		area, err := plotter.NewPolygon(plotter.XYs{{X: b[0], Y: 0}, {X: b[0], Y: top}, {X: b[1], Y: top}, {X: b[1], Y: 0}})
		if err != nil {
			return err
		}
		area.Color, area.LineStyle.Width = color.Gray{0xdd}, 0
		p.Add(area)
	}
	for i, s := range all {
		if len(s.points) == 0 {
			continue
		}
		line, err := plotter.NewLine(s.points)
		if err != nil {
			return err
		}
		line.Color = colors[i%len(colors)]
		p.Add(line)
		p.Legend.Add(s.name, line)
	}
	return p.Save(24*vg.Centimeter, 10*vg.Centimeter, d.file(".svg"))
}

// plotBars draws one bar for each name.
func (d *desk) plotBars(title, y string, names []string, heights []float64) error {
	p := newPlot(title, "", y)
	bars, err := plotter.NewBarChart(plotter.Values(heights), vg.Points(30))
	if err != nil {
		return err
	}
	bars.Color = colors[0]
	p.Add(bars)
	p.NominalX(names...)
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, d.file(".svg"))
}
